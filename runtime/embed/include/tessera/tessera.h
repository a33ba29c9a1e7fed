#pragma once

// All that a program needs which trains, evaluates, saves and runs a model with Tessera: a model of
// its own (layers, operations) or a GPT, data, options, a Trainer or a Session, checkpoints, and
// whoever has launched it. A program that compiles often includes what it uses of these.

#include "tessera/autograd/layer.h"
#include "tessera/autograd/ops.h"
#include "tessera/autograd/tape.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/lab/hardware_profile.h"
#include "tessera/model/chat_template.h"
#include "tessera/model/dataset.h"
#include "tessera/model/generate.h"
#include "tessera/model/gpt.h"
#include "tessera/model/gpt_sampler.h"
#include "tessera/model/pretrained.h"
#include "tessera/model/tokenizer.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/strategies.h"
#include "tessera/trainer/csv_log.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/tensorboard.h"
#include "tessera/trainer/trainer.h"

// Trains a small GPT on a text file (or a folder of them) with four ranks, all of them sharded.
#include <iostream>

#include "tessera/model/dataset.h"
#include "tessera/model/gpt.h"
#include "tessera/trainer/trainer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: train_gpt TEXT\n";
    return 2;
  }
  const tessera::Model model = tessera::make_gpt(tessera::gpt_preset("gpt2-tiny"));
  const tessera::TokenDataset data({.path = argv[1], .sequence_length = 64});
  const tessera::Trainer trainer(
      model, data,
      {.strategy = "full_shard", .ranks = 4, .steps = 12, .learning_rate = {.peak = 3e-3}});
  const tessera::TrainingSummary summary = trainer.train([](const tessera::StepRecord& record) {
    std::cout << "step " << record.step << "  loss " << record.loss << "\n";
    return true;  // go on
  });
  return summary.last_loss < summary.first_loss ? 0 : 1;
}

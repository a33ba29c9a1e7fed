#pragma once

#include "tessera/sharding/operation.h"
#include "tessera/sharding/step_context.h"

// The handlers of operations: each carries out one action on one rank. See Operation::run.
namespace tessera::handlers {

void count_tokens(StepContext& context, const Action& action, Stream& stream);
void all_gather(StepContext& context, const Action& action, Stream& stream);
void reduce_scatter(StepContext& context, const Action& action, Stream& stream);
void all_reduce(StepContext& context, const Action& action, Stream& stream);
void forward(StepContext& context, const Action& action, Stream& stream);
void forward_loss(StepContext& context, const Action& action, Stream& stream);
void loss(StepContext& context, const Action& action, Stream& stream);
void loss_backward(StepContext& context, const Action& action, Stream& stream);
void backward(StepContext& context, const Action& action, Stream& stream);
void backward_input(StepContext& context, const Action& action, Stream& stream);
void backward_weight(StepContext& context, const Action& action, Stream& stream);
void decode(StepContext& context, const Action& action, Stream& stream);
void amax(StepContext& context, const Action& action, Stream& stream);
void roll_history(StepContext& context, const Action& action, Stream& stream);
void all_reduce_max(StepContext& context, const Action& action, Stream& stream);
void encode(StepContext& context, const Action& action, Stream& stream);
void cast(StepContext& context, const Action& action, Stream& stream);
void copy(StepContext& context, const Action& action, Stream& stream);
void release(StepContext& context, const Action& action, Stream& stream);
void reserve(StepContext& context, const Action& action, Stream& stream);
void pack(StepContext& context, const Action& action, Stream& stream);
void unpack(StepContext& context, const Action& action, Stream& stream);
void send(StepContext& context, const Action& action, Stream& stream);
void receive(StepContext& context, const Action& action, Stream& stream);
void add_tied(StepContext& context, const Action& action, Stream& stream);
void norm_partial(StepContext& context, const Action& action, Stream& stream);
void results(StepContext& context, const Action& action, Stream& stream);
void square_sums(StepContext& context, const Action& action, Stream& stream);
void moments(StepContext& context, const Action& action, Stream& stream);
void update_squares(StepContext& context, const Action& action, Stream& stream);
void optimizer_step(StepContext& context, const Action& action, Stream& stream);

}  // namespace tessera::handlers

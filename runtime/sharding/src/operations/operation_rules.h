#pragma once

#include "tessera/sharding/contents.h"
#include "tessera/sharding/operation.h"

// The rules of operations: what each does to the contents of buffers. They know no strategy.
namespace tessera::rules {

/// Requires that a gradient is the sum of all contributions of all ranks.
void require_complete(ContentWalk& walk, const Content& gradient);

/// Requires that an operand has the joined scales of codes, or of what is to be encoded.
void require_scales(ContentWalk& walk, const Operand& scales, const Content& of);

void count_tokens(ContentWalk& walk, const Action& action);
void all_gather(ContentWalk& walk, const Action& action);
void reduce_scatter(ContentWalk& walk, const Action& action);
void all_reduce(ContentWalk& walk, const Action& action);
void forward(ContentWalk& walk, const Action& action);
void forward_loss(ContentWalk& walk, const Action& action);
void loss(ContentWalk& walk, const Action& action);
void loss_backward(ContentWalk& walk, const Action& action);
void backward(ContentWalk& walk, const Action& action);
void backward_input(ContentWalk& walk, const Action& action);
void backward_weight(ContentWalk& walk, const Action& action);
void reshard(ContentWalk& walk, const Action& action);
void decode(ContentWalk& walk, const Action& action);
void amax(ContentWalk& walk, const Action& action);
void roll_history(ContentWalk& walk, const Action& action);
void all_reduce_max(ContentWalk& walk, const Action& action);
void encode(ContentWalk& walk, const Action& action);
void cast(ContentWalk& walk, const Action& action);
void copy(ContentWalk& walk, const Action& action);
void release(ContentWalk& walk, const Action& action);
void reserve(ContentWalk& walk, const Action& action);
void pack(ContentWalk& walk, const Action& action);
void unpack(ContentWalk& walk, const Action& action);
void send(ContentWalk& walk, const Action& action);
void receive(ContentWalk& walk, const Action& action);
void add_tied(ContentWalk& walk, const Action& action);
void norm_partial(ContentWalk& walk, const Action& action);
void results(ContentWalk& walk, const Action& action);
void square_sums(ContentWalk& walk, const Action& action);
void moments(ContentWalk& walk, const Action& action);
void update_squares(ContentWalk& walk, const Action& action);
void optimizer_step(ContentWalk& walk, const Action& action);

}  // namespace tessera::rules

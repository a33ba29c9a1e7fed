#include "operations/operation_handlers.h"

#include <cstring>
#include <span>

#include "execution/layer_runner.h"
#include "execution/optimizer_runner.h"
#include "execution/step_buffers.h"
#include "execution/step_exchange.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"

namespace tessera {

TensorView StepContext::view(const Operand& operand) const { return buffers_.view(operand); }
TensorView StepContext::view(const Operand& operand, int flat) const {
  return buffers_.view(operand, flat);
}
DiskPlace StepContext::disk_place(const Operand& operand) const {
  return buffers_.disk_place(operand);
}
std::int64_t StepContext::first_element(const Operand& operand) const {
  return buffers_.first_element(operand);
}
ProcessGroup& StepContext::group(const Action& action) const {
  return groups_.of(action.lane, action.axes);
}
ProcessGroup& StepContext::pair(const Action& message) const {
  return groups_.pair(message.lane, message.peer);
}

namespace {

/// Between the disk and `memory`: on the lane's thread, or on a GPU's rank on one of the driver's.
void copy_disk(const DiskPlace& place, const TensorView& memory, bool reads, Stream& stream) {
  if (place.store == nullptr) return;
  const std::span bytes(static_cast<std::byte*>(memory.data),
                        static_cast<std::size_t>(memory.bytes()));
  stream.submit_on_host({.name = reads ? "read from disk" : "write to disk"}, [=] {
    if (reads) {
      place.store->read(place.extent, bytes, place.offset);
    } else {
      place.store->write(place.extent, bytes, place.offset);
    }
  });
}

/// One flat parameter, or what goes with it.
void copy_flat(StepContext& context, const Operand& source, const Operand& target, int flat,
               Stream& stream) {
  const Schedule& schedule = context.schedule();
  const TensorView from = context.view(source, flat);
  const TensorView to = context.view(target, flat);
  const Tier from_tier = schedule.buffer(source).tier, to_tier = schedule.buffer(target).tier;
  const auto bytes = static_cast<std::size_t>(from.bytes());
  count_copy(from_tier, to_tier, from.bytes(), context.copies());
  if (from_tier == Tier::kDisk) {
    copy_disk(context.disk_place(source), to, true, stream);
  } else if (to_tier == Tier::kDisk) {
    copy_disk(context.disk_place(target), from, false, stream);
  } else if (from_tier == Tier::kHost && to_tier == Tier::kHost) {
    stream.submit_on_host({.name = "copy"}, [=] { std::memcpy(to.data, from.data, bytes); });
  } else {
    stream.copy(to.data, from.data, bytes);
  }
}

/// The elements of a message; its slot may have room for more.
TensorView message_view(StepContext& context, const Action& message, const Operand& operand) {
  const TensorView view = context.view(operand);
  if (operand.unit >= 0) return view;
  return view.narrow(0, 0, context.layers().message_numel(message.layer));
}

/// Elements of a unit's flat parameters before the operand's.
std::int64_t flats_before(const Schedule& schedule, const Operand& operand) {
  std::int64_t numel = 0;
  for (int f = 0; f < schedule.flats(operand).front(); ++f) {
    numel += schedule.flat(operand.unit, f).numel;
  }
  return numel;
}

}  // namespace

namespace handlers {

void count_tokens(StepContext& context, const Action& /*action*/, Stream& stream) {
  context.exchange().count_tokens(!context.schedule().updates_wait_for_norm, stream);
}

void all_gather(StepContext& context, const Action& action, Stream& stream) {
  const Operand& to = action.writes.front();
  for (const Operand& from : action.reads) {
    for (const int flat : flats_of(context.schedule(), from)) {
      context.group(action).all_gather(context.view(from, flat), context.view(to, flat), stream);
    }
  }
}

void reduce_scatter(StepContext& context, const Action& action, Stream& stream) {
  const Operand& to = action.writes.front();
  context.group(action).reduce_scatter(context.view(action.reads.front()), context.view(to),
                                       to.adds, stream);
}

void all_reduce(StepContext& context, const Action& action, Stream& stream) {
  context.group(action).all_reduce(context.view(action.writes.front()), stream);
}

void forward(StepContext& context, const Action& action, Stream& stream) {
  context.layers().forward(action, stream);
}

void forward_loss(StepContext& context, const Action& action, Stream& stream) {
  StepExchange& exchange = context.exchange();
  context.layers().forward_loss(action, exchange.loss_scale(), exchange.loss_sum(), exchange.hits(),
                                stream);
}

void loss(StepContext& context, const Action& action, Stream& stream) {
  StepExchange& exchange = context.exchange();
  context.layers().loss(action, exchange.loss_scale(), exchange.loss_sum(), stream);
}

void loss_backward(StepContext& context, const Action& action, Stream& stream) {
  context.layers().loss_backward(action, context.exchange().loss_scale(), stream);
}

void backward(StepContext& context, const Action& action, Stream& stream) {
  context.layers().backward(action, stream);
}

void backward_input(StepContext& context, const Action& action, Stream& stream) {
  context.layers().backward_input(action, stream);
}

void backward_weight(StepContext& context, const Action& action, Stream& stream) {
  context.layers().backward_weight(action, stream);
}

void decode(StepContext& context, const Action& action, Stream& stream) {
  context.layers().decode(action, stream);
}

void amax(StepContext& context, const Action& action, Stream& stream) {
  context.layers().amax(action, stream);
}

void roll_history(StepContext& context, const Action& action, Stream& stream) {
  context.layers().roll_history(action, stream);
}

/// A maximum over ranks is an all-gather, and a kernel behind it.
void all_reduce_max(StepContext& context, const Action& action, Stream& stream) {
  ProcessGroup& group = context.group(action);
  const TensorView words = context.view(action.writes.front());
  const std::int64_t count = words.numel() / (1 + group.size());
  const TensorView row = words.narrow(0, 0, count);
  const TensorView rows = words.narrow(0, count, count * group.size());
  group.all_gather(row, rows, stream);
  stream.submit({.name = "largest"}, [&context, row, rows, &group, count, &stream] {
    context.kernels().max_words({.rows = rows.reshape(Shape{group.size(), count}), .words = row},
                                stream);
  });
}

void encode(StepContext& context, const Action& action, Stream& stream) {
  context.layers().encode(action, stream);
}

void cast(StepContext& context, const Action& action, Stream& stream) {
  const TensorView from = context.view(action.reads.front());
  const TensorView to = context.view(action.writes.front());
  if (action.writes.front().adds) return context.kernels().add({.src = from, .dst = to}, stream);
  context.kernels().cast({.src = from, .dst = to}, stream);
}

void copy(StepContext& context, const Action& action, Stream& stream) {
  const Schedule& schedule = context.schedule();
  const Operand& target = action.writes.front();
  for (const bool leaves : {true, false}) {
    const Operand& activation = leaves ? action.reads.front() : target;
    if (!schedule.buffer(activation).is_activation()) continue;
    const TensorView on_host = context.view(leaves ? target : action.reads.front());
    count_copy(leaves ? Tier::kDevice : Tier::kHost, leaves ? Tier::kHost : Tier::kDevice,
               on_host.bytes(), context.copies());
    return context.layers().copy_input(activation, on_host, leaves, stream);
  }
  for (const Operand& source : action.reads) {
    for (const int flat : flats_of(schedule, source))
      copy_flat(context, source, target, flat, stream);
  }
}

void release(StepContext& context, const Action& action, Stream& /*stream*/) {
  context.layers().release_input(action);
}

void reserve(StepContext& context, const Action& action, Stream& /*stream*/) {
  context.layers().reserve_input(action);
}

void pack(StepContext& context, const Action& action, Stream& stream) {
  context.layers().pack(action, stream);
}

void unpack(StepContext& context, const Action& action, Stream& stream) {
  context.layers().unpack(action, stream);
}

void send(StepContext& context, const Action& action, Stream& stream) {
  const int other = action.peer > context.schedule().pipeline.rank ? 1 : 0;
  context.pair(action).send(message_view(context, action, action.reads.front()), other, stream);
}

void receive(StepContext& context, const Action& action, Stream& stream) {
  const int other = action.peer > context.schedule().pipeline.rank ? 1 : 0;
  context.pair(action).recv(message_view(context, action, action.writes.front()), other, stream);
}

void add_tied(StepContext& context, const Action& action, Stream& stream) {
  context.kernels().add(
      {.src = context.view(action.reads.front()), .dst = context.view(action.writes.front())},
      stream);
}

void norm_partial(StepContext& context, const Action& action, Stream& stream) {
  const Operand& gradient = action.reads.front();
  StepExchange& exchange = context.exchange();
  const TensorView x = context.view(gradient);
  context.kernels().exact_squares({.x = x, .words = exchange.square_sum()}, stream);
  if (exchange.scaler() == nullptr) return;
  context.kernels().find_non_finite(
      {.x = x,
       .squares = exchange.square_sum(),
       .first_index = number_of({gradient.unit, flats_before(context.schedule(), gradient) +
                                                    context.first_element(gradient)}),
       .scaler = exchange.scaler()->words()},
      stream);
}

void results(StepContext& context, const Action& action, Stream& stream) {
  const bool with_norm = action.reads.size() > 2;
  context.exchange().reduce_results(with_norm, !context.schedule().updates_wait_for_norm, stream);
}

void square_sums(StepContext& context, const Action& action, Stream& stream) {
  context.optimizer().factored().add_squares(context, action, stream);
}

void moments(StepContext& context, const Action& action, Stream& stream) {
  context.optimizer().factored().update_moments(context, action, stream);
}

void update_squares(StepContext& context, const Action& action, Stream& stream) {
  context.optimizer().factored().add_update_squares(context, action, stream);
}

void optimizer_step(StepContext& context, const Action& action, Stream& stream) {
  context.optimizer().step(context, action, stream);
}

}  // namespace handlers
}  // namespace tessera

#include "cross_entropy_arguments.h"

#include "tessera/core/error.h"

namespace tessera {

void check_cross_entropy(const CrossEntropyArgs& args) {
  const Shape& shape = args.logits.shape;
  require(shape.rank() == 2 && args.vocab_size >= 1 && args.vocab_size <= shape[1] &&
              args.logits.strides[1] == 1 && args.logits.strides[0] >= shape[1],
          ErrorCode::kInvalidArgument, "cross_entropy: logits ", shape,
          " must have contiguous rows of at least the vocabulary's ", args.vocab_size);
  require(args.targets.numel() == shape[0] && args.losses.numel() == shape[0],
          ErrorCode::kInvalidArgument, "cross_entropy: ", shape[0], " rows, ", args.targets.numel(),
          " targets, ", args.losses.numel(), " losses");
  require(args.soft_cap >= 0.0F, ErrorCode::kInvalidArgument, "cross_entropy: a soft cap of ",
          args.soft_cap, "; it may not be negative");
  const std::int64_t of_classes = hit_words(args.vocab_size);
  require(!args.hits || (!args.gradient && args.hits.dtype == DType::kInt64 &&
                         (args.hits.numel() == kHitWords || args.hits.numel() == of_classes)),
          ErrorCode::kInvalidArgument, "cross_entropy: hits are ", args.hits.shape, " of ",
          to_string(args.hits.dtype), ", wanted ", kHitWords, " int64, or ", of_classes,
          " for each class, and no gradient");
}

}  // namespace tessera

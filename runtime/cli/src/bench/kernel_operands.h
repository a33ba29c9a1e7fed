#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/kernel_cases.h"
#include "tessera/core/error.h"
#include "tessera/lab/kernel_calls.h"

namespace tessera::bench {

/// Tensors on a lab's device, which live as long as a copy of this.
struct Operands {
  KernelLab& lab;
  const KernelSizes& size = lab.sizes();
  std::shared_ptr<std::vector<Tensor>> all = std::make_shared<std::vector<Tensor>>();

  TensorView keep(Tensor tensor) { return all->emplace_back(std::move(tensor)); }
  TensorView random(const Shape& shape, DType t, float stddev = 1.0F) {
    return keep(lab.random(shape, t, stddev));
  }
  TensorView empty(const Shape& shape, DType t) { return keep(lab.empty(shape, t)); }
  TensorView constant(const Shape& shape, float value) {
    return keep(lab.constant(shape, DType::kFloat32, value));
  }
  TensorView tokens(const Shape& shape) { return keep(lab.tokens(shape, kVocabulary)); }
  TensorView integers(std::int64_t n, std::int64_t value) { return keep(lab.integers(n, value)); }

  Shape rows() const { return {size.tokens(), size.channels}; }
  Shape hidden() const { return {size.tokens(), 4 * size.channels}; }
  Shape shard() const { return {size.shard}; }
};

template <typename Args>
using Kernel = KernelFunction<Args> KernelTable::*;

/// A call whose bytes are given, of which `written` as in PreparedKernel.
template <typename Args>
PreparedKernel call_of(const Operands& o, Kernel<Args> kernel, const Args& args, double bytes,
                       double written = 0.0) {
  const auto call = [o, kernel, args](Stream& stream) { (o.lab.kernels().*kernel)(args, stream); };
  return {.call = call, .bytes = bytes, .written = written};
}

/// A call whose bytes and FLOPs are those that the lab counts in a step.
template <typename Args>
PreparedKernel counted_call(const Operands& o, Kernel<Args> kernel, const Args& args) {
  KernelCall counted;
  const KernelTable recording = recording_kernels([&](KernelCall c) { counted = std::move(c); });
  (recording.*kernel)(args, o.lab.stream());
  PreparedKernel prepared = call_of(o, kernel, args, counted.bytes);
  prepared.flops = counted.flops;
  prepared.dtype = counted.dtype;
  return prepared;
}

template <typename Args>
using BytesOf = std::type_identity_t<double (*)(const Args&)>;

/// A list of cases, to which those of one type of operands are added. `make` gives a kernel's
/// arguments of operands. The type follows the kernel's name.
struct Cases {
  std::vector<KernelCase>& all;
  DType t;

  void add(const std::string& name, std::function<PreparedKernel(KernelLab&)> prepare) const {
    all.push_back({name, std::move(prepare)});
    all.back().name.insert(std::min(name.find('/'), name.size()), concat("/", to_string(t)));
  }
  template <typename Args, typename Make>
  void add(const std::string& name, Kernel<Args> kernel, const Make& make) const {
    add(name, [=](KernelLab& lab) {
      Operands o{lab};
      return counted_call<Args>(o, kernel, make(o));
    });
  }
  /// `moved` gives the bytes of the arguments, and `written` those of them that PreparedKernel
  /// calls so.
  template <typename Args, typename Make>
  void add(const std::string& name, Kernel<Args> kernel, const Make& make, BytesOf<Args> moved,
           BytesOf<Args> written = nullptr) const {
    add(name, [=](KernelLab& lab) {
      Operands o{lab};
      const Args args = make(o);
      return call_of(o, kernel, args, moved(args), written ? written(args) : 0.0);
    });
  }
};

/// Kernels of the training state, on flat shards.
void add_state_cases(std::vector<KernelCase>& cases, DType t);
/// Kernels of the training state that run in one type.
void add_scalar_cases(std::vector<KernelCase>& cases);

}  // namespace tessera::bench

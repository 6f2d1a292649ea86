// KnownTensors: the tensors of a publish that the next one most likely gives again. A model has
// thousands of tensors, and describing each of them in Python takes 1 to 2 us. Here all of them are
// compared with what is known, in one pass that makes no Python objects, and only their addresses
// are taken anew.
//
// Thread: as Python objects, under the GIL. A publisher uses one from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nanobind/nanobind.h>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deploy/python/extension/dlpack.h"
#include "trainer_side/plugin/wsync/trainer.h"

namespace wsync::python {

class KnownTensors {
 public:
  // `described`: the tensors of a publish as tuples of name, dtype, shape, ranges, tensor, address,
  // GPU and stream (Described of wsync/_tensors.py), in the order in which they were given.
  // `types`: the types of tensors that are understood, each with DLPack's exchange API and
  // `is_neg`. `once`: whether a second name of the same memory is left out. std::nullopt if one of
  // the tensors is anything else than a whole one of these types in the memory of the host, in
  // row-major order and with its values as they are.
  static std::optional<KnownTensors> make(const nanobind::list& described,
                                          const nanobind::tuple& types, bool once);

  // Whether a dict has exactly these names, in its order, with tensors of the same dtypes and
  // shapes, in the memory of the host, in row-major order and with their values as they are, and
  // whether those and only those that shared memory share it. Then parts() has their addresses, and
  // the result keeps the tensors alive. Otherwise std::nullopt, and nothing has changed.
  std::optional<nanobind::list> read(nanobind::handle tensors);

  // The parts to write, while the result of read() is there.
  [[nodiscard]] std::span<const wsync_trainer_part> parts() const noexcept { return parts_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Kind {
    nanobind::object type;
    nanobind::object is_neg;  // the method of the type
    const dlpack::ExchangeApi* api;
  };
  struct Known {
    nanobind::object name;
    std::string dtype;
    dlpack::DType element;
    std::vector<std::uint64_t> shape;
    std::size_t same_as = kNone;  // the one with the same memory, which is written in its place
  };

  KnownTensors() = default;
  // The view of a tensor, if it is as make() describes.
  [[nodiscard]] std::optional<dlpack::Tensor> view(nanobind::handle tensor) const;
  // Whether the tensors at these addresses, in the order of known_, share memory as known_ says.
  [[nodiscard]] bool shares_as_before(std::span<const void* const> addresses) const;
  void fill_parts();

  std::vector<Kind> kinds_;
  std::vector<Known> known_;
  std::vector<const void*> addresses_;     // of the tensors that were read last
  std::vector<wsync_trainer_part> parts_;  // of those that are written, in their order
  bool once_ = false;
};

void bind_known_tensors(nanobind::module_& module);

}  // namespace wsync::python

// Destination: the memory into which a rank takes its part of a tensor as pieces, and the dtype of
// its elements there. If that is not the dtype in the version, each element is converted while it
// is copied; what is summed for the proof of the load are the bytes of the version, as always.
//
// Thread: the functions are pure, but for the memory that they are given.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "inference_side/engine_link/engine.h"
#include "inference_side/reload/load_plan.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/float_formats.h"
#include "shared/base/split_sum.h"
#include "shared/weights/dtype.h"

namespace wsync::engine {

struct Destination {
  struct Cast {
    DType from = DType::kF32;  // in the version
    DType to = DType::kF32;    // in the memory
  };
  std::span<std::byte> memory;
  std::optional<Cast> cast;  // std::nullopt: the bytes of the version

  [[nodiscard]] static Destination of(const RankTensor& tensor);
};

// The conversion as a device does it. `cast` has passed check_cast().
[[nodiscard]] FloatCast device_cast(const std::optional<Destination::Cast>& cast) noexcept;

// Whether the tensor can be converted as its `held_as` says. Otherwise returns kInvalidInput, with
// the tensor, the dtypes and what is possible. On a GPU its destination must be aligned to its
// elements.
[[nodiscard]] Result<> check_cast(const RankTensor& tensor, control::TakeMode take, bool on_gpu);
// The size of the memory of a part that has `version_bytes` in the version.
[[nodiscard]] std::uint64_t destination_bytes(const RankTensor& tensor,
                                              std::uint64_t version_bytes) noexcept;
// As LoadPlan::execute_chunk(), into a destination.
[[nodiscard]] SplitSum take_chunk(const reload::LoadPlan& plan, const reload::CopyGroup& group,
                                  std::uint64_t index, std::span<const std::byte> bucket,
                                  const Destination& destination, reload::CopyScratch& scratch);
// Why what a version had cannot be told from the memory: a conversion has lost bits. Empty: it can.
[[nodiscard]] std::string why_unreadable(const RankTensor& tensor);
// The digest of what the memory holds, in the dtype of the version. If an element of the memory is
// none that a value of the version's dtype gives, no version has this digest. Returns kRefused for
// a conversion that loses bits, because nobody can say then what they were.
[[nodiscard]] Result<Digest> held_digest(const RankTensor& tensor);
// The same of a converted tensor whose memory the host cannot read: `read` copies the bytes at `at`
// of its memory to `out`. Its errors are returned.
using ReadHeld = std::function<Result<>(std::uint64_t at, std::span<std::byte> out)>;
[[nodiscard]] Result<Digest> held_digest_by(const RankTensor& tensor, const ReadHeld& read);

}  // namespace wsync::engine

#include "bench/gpu/batch.h"

#include <algorithm>

#include "bench/gpu/timing.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kElementBytes = 2;
constexpr std::uint64_t kHiddenMax = 4096;
constexpr std::uint64_t kHiddenMin = 16;

// Matrices of a layer in their order. Rows and columns are in units of half the hidden size.
struct MatrixShape {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  bool halves = false;  // the columns are copied in two halves
};
constexpr MatrixShape kMatrices[] = {{3, 2, false}, {2, 2, true}, {14, 2, false}, {2, 7, true}};
constexpr std::size_t kNormsBefore[] = {1, 0, 1, 0};

std::uint64_t layer_bytes(std::uint64_t hidden) {
  std::uint64_t elements = 2 * hidden;
  for (const MatrixShape& shape : kMatrices)
    elements += shape.rows * shape.columns * (hidden / 2) * (hidden / 2);
  return elements * kElementBytes;
}

class Builder {
 public:
  explicit Builder(const BatchPlace& place) : place_(place) {}

  void tensor(std::uint64_t bytes) {
    add(0, bytes, 1, bytes, 0);
    end(bytes);
  }
  // Copies the left columns, then the right ones. In the destination, all left columns precede the
  // right ones.
  void halves(std::uint64_t rows, std::uint64_t row_bytes) {
    const std::uint64_t half = row_bytes / 2;
    add(0, half, rows, row_bytes, 0);
    add(half, half, rows, row_bytes, rows * half);
    end(rows * row_bytes);
  }
  [[nodiscard]] std::uint64_t left() const { return place_.bytes - at_; }
  [[nodiscard]] Batch take() && { return std::move(batch_); }

 private:
  void add(std::uint64_t skipped, std::uint64_t row_bytes, std::uint64_t rows, std::uint64_t stride,
           std::uint64_t position) {
    batch_.pieces.push_back(
        {.to = place_.to,
         .to_offset = place_.to_offset + at_ + position,
         .from = place_.from,
         .from_offset = place_.from_offset + at_ + skipped,
         .row_bytes = row_bytes,
         .rows = rows,
         .from_stride = stride,
         .sum = batch_.sums,
         .place = {.seed = batch_.sums, .position = skipped, .tensor_bytes = rows * stride}});
  }
  void end(std::uint64_t bytes) {
    at_ += bytes;
    ++batch_.sums;
  }

  const BatchPlace& place_;
  Batch batch_;
  std::uint64_t at_ = 0;
};

}  // namespace

Batch make_batch(const BatchPlace& place) {
  Builder builder(place);
  std::uint64_t hidden = kHiddenMax;
  while (hidden > kHiddenMin && 2 * layer_bytes(hidden) > place.bytes) hidden /= 2;
  const std::uint64_t unit = hidden / 2;
  while (builder.left() >= layer_bytes(hidden))
    for (std::size_t i = 0; i < std::size(kMatrices); ++i) {
      if (kNormsBefore[i] != 0) builder.tensor(hidden * kElementBytes);
      const std::uint64_t rows = kMatrices[i].rows * unit;
      const std::uint64_t row_bytes = kMatrices[i].columns * unit * kElementBytes;
      if (kMatrices[i].halves)
        builder.halves(rows, row_bytes);
      else
        builder.tensor(rows * row_bytes);
    }
  if (builder.left() > 0) builder.tensor(builder.left());
  return std::move(builder).take();
}

std::uint64_t check_of(std::span<const SplitSum> sums) {
  // The position of each sum matters, so that two exchanged sums are detected.
  std::uint64_t check = 0;
  for (const SplitSum& sum : sums) check = check * 31 + fold(sum.words, 0) + 7 * fold(sum.edges, 0);
  return check;
}

Result<std::uint64_t> expected_check(std::span<const std::byte> bucket) {
  auto device =
      device::make_device({.kind = DeviceKind::kSeparate, .index = device::DeviceIndex{0}});
  if (!device) return fail(std::move(device).error());
  // Read only, because no piece has a destination.
  auto memory =
      WSYNC_TRY((*device)->borrow({const_cast<std::byte*>(bucket.data()), bucket.size()}));
  const Batch batch = make_batch({.from = memory.get(), .bytes = bucket.size()});
  std::vector<SplitSum> sums(batch.sums);  // outlives the stream
  auto work = WSYNC_TRY(TimedStream::create(**device, device::StreamRole::kReload));
  (void)WSYNC_TRY(
      work.run(1, [&](device::Stream& stream) { return stream.copy_pieces(batch.pieces, sums); }));
  return check_of(sums);
}

}  // namespace wsync::bench

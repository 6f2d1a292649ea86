// Any bytes as a patch of a fixed model: the readers refuse them, or what they accept is written
// again alike, and no byte lands outside of the tensors and parts that it is applied to.
//
// Input: 2 bytes, the length of the index (little-endian); the index; the buckets. The digests and
// lengths that only a hash function can find are put right before it is read; the same bytes are
// also read as a patch file, as they are.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "shared/base/check.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/patch_file.h"

namespace {

using wsync::Bytes;
using wsync::DType;
using wsync::Manifest;
using namespace wsync::patch;  // NOLINT(google-build-using-namespace): this file is about it

constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xA5};
constexpr std::size_t kEntryBytes = 56;

const Manifest& model() {
  static const Manifest manifest =
      Manifest::create({{.name = "a", .dtype = DType::kBF16, .shape = {40, 30}},
                        {.name = "b", .dtype = DType::kU8, .shape = {5, 7}},
                        {.name = "c", .dtype = DType::kF64, .shape = {3}},
                        {.name = "d", .dtype = DType::kF4, .shape = {4, 6}},
                        {.name = "e", .dtype = DType::kU8, .shape = {kBlockBytes + 9}},
                        {.name = "f", .dtype = DType::kF32, .shape = {0}}})
          .value();
  return manifest;
}

// Memory between guards.
class Guarded {
 public:
  explicit Guarded(std::span<const std::byte> bytes)
      : memory_(bytes.size() + 2 * kGuardBytes, kGuard) {
    std::ranges::copy(bytes, memory_.begin() + kGuardBytes);
  }
  std::span<std::byte> bytes() {
    return std::span(memory_).subspan(kGuardBytes, memory_.size() - 2 * kGuardBytes);
  }
  void check() const {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    WSYNC_CHECK(std::all_of(memory_.begin(), memory_.begin() + kGuardBytes, is_guard) &&
                    std::all_of(memory_.end() - kGuardBytes, memory_.end(), is_guard),
                "nothing is written outside");
  }

 private:
  Bytes memory_;
};

template <class T>
void put(Bytes& bytes, std::size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Puts right what the index says of the model and of bytes, as far as there are bytes.
void seal(Bytes& index, std::span<const std::byte> body,
          std::vector<std::span<const std::byte>>& buckets) {
  if (index.size() < kIndexHeadBytes + sizeof(wsync::Digest)) return;
  put(index, 8, std::uint64_t{index.size()});
  put(index, 16, model().layout_digest());
  put(index, 64, model().total_bytes());
  std::uint32_t count = 0;
  std::memcpy(&count, index.data() + 100, sizeof count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t entry = kIndexHeadBytes + i * kEntryBytes;
    if (entry + kEntryBytes > index.size() - sizeof(wsync::Digest)) break;
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, index.data() + entry, sizeof bytes);
    bytes = std::min<std::uint64_t>(bytes, body.size());
    buckets.push_back(body.first(bytes));
    put(index, entry + kEntryBytes - sizeof(wsync::Digest), wsync::digest_of(buckets.back()));
    body = body.subspan(bytes);
  }
  const std::size_t end = index.size() - sizeof(wsync::Digest);
  put(index, end, wsync::digest_of(std::span(index).first(end)));
}

void check_written_alike(const Layout& layout, const PatchReader& patch,
                         std::span<const std::byte> index,
                         std::span<const std::span<const std::byte>> buckets) {
  WSYNC_CHECK(std::ranges::equal(patch.index().encode(), index), "an index is written alike");
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].size() > wsync::limits::kMiB / 2) continue;  // the builder might divide it
    const auto blocks = parse_bucket(patch.index(), layout, i, buckets[i]);
    WSYNC_CHECK(blocks.has_value(), "a bucket that was accepted is accepted");
    auto builder = PatchBuilder::create(layout, wsync::limits::kMiB).value();
    for (const BlockView& block : *blocks) builder.add(copy_of(block));
    const auto again = builder.finish(patch.index().link().base, patch.index().link().target);
    WSYNC_CHECK(again && again->buckets.size() == 1 &&
                    std::ranges::equal(again->buckets.front(), buckets[i]),
                "a bucket is written alike");
  }
}

void check_parts(const Layout& layout, const BlockView& block, std::span<const std::byte> tensor,
                 std::span<const std::byte> patched) {
  const auto& info = model().tensor(block.place.tensor);
  BlockApplier applier(layout);
  for (std::uint32_t dim = 0; dim < info.shape.size(); ++dim) {
    const std::uint64_t half = info.shape[dim] / 2;
    const PartRange first{.dim = dim, .begin = 0, .length = half};
    const PartRange second{.dim = dim, .begin = half, .length = info.shape[dim] - half};
    for (const PartRange& range : {first, second}) {
      const auto part = TensorPart::create(info, {&range, 1});
      if (!part) continue;  // a boundary within a byte
      Bytes held(part->bytes());
      for (auto run = part->run_from(0); run; run = part->run_from(run->end))
        std::memcpy(held.data() + run->offset, tensor.data() + run->begin, run->end - run->begin);
      Guarded memory(held);
      (void)applier.apply_to_part(block, *part, memory.bytes());
      memory.check();
      for (auto run = part->run_from(0); run; run = part->run_from(run->end))
        WSYNC_CHECK(std::memcmp(memory.bytes().data() + run->offset, patched.data() + run->begin,
                                run->end - run->begin) == 0,
                    "a part gets what the tensor gets");
    }
  }
}

void check_applied(const Layout& layout, const PatchReader& patch) {
  BlockApplier applier(layout);
  for (const BlockView& block : patch.blocks()) {
    const std::uint64_t bytes = model().byte_size(block.place.tensor);
    const Bytes before(bytes, std::byte{0x3C});
    Guarded memory(before);
    const auto here =
        memory.bytes().subspan(Layout::offset(block.place), layout.block_bytes(block.place));
    const auto strict = applier.apply(block, here);
    WSYNC_CHECK(strict || std::ranges::equal(memory.bytes(), before) ||
                    strict.error().message().find("after the patch") != std::string::npos,
                "another base is left as it was");
    (void)applier.apply(block, here, BeforeRule::kRepeat);
    memory.check();
    const Bytes once(memory.bytes().begin(), memory.bytes().end());
    (void)applier.apply(block, here, BeforeRule::kRepeat);
    WSYNC_CHECK(std::ranges::equal(memory.bytes(), once), "twice is as once");
    if (bytes < kBlockBytes || block.place.block == 1) check_parts(layout, block, before, once);
  }
}

void read_file(std::span<const std::byte> bytes) {
  const auto file = PatchFile::parse(Bytes(bytes.begin(), bytes.end()));
  if (file) return;
  const std::string& message = file.error().message();
  WSYNC_CHECK(!message.empty() && message.find('\n') == std::string::npos, "one line says why");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  read_file(bytes);
  if (size < 2) return 0;
  std::uint16_t length = 0;
  std::memcpy(&length, data, 2);
  const auto rest = bytes.subspan(2);
  const auto head = rest.first(std::min<std::size_t>(length, rest.size()));
  Bytes index(head.begin(), head.end());
  std::vector<std::span<const std::byte>> buckets;
  seal(index, rest.subspan(head.size()), buckets);
  static const Layout layout(model());
  const auto patch = PatchReader::open(layout, index, buckets);
  if (!patch) return 0;
  check_written_alike(layout, *patch, index, buckets);
  check_applied(layout, *patch);
  return 0;
}

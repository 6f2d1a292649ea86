#include "bench/harness/memory.h"

#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/base/units.h"
#include "shared/observe/trace/progress.h"

namespace wsync::bench {

Result<> require_copies(std::uint64_t copies, std::uint64_t bytes, std::string_view whom) {
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  const auto available = WSYNC_TRY(available_memory());
  const std::uint64_t max = available.bytes / copies;
  if (bytes <= max) return {};
  const std::uint64_t needed = bytes > kAll / copies ? kAll : copies * bytes;
  return fail(
      ErrorCode::kResourceExhausted,
      fmt::format("this suite needs {} copies of {}, {} in total, {}, but only {} of memory are "
                  "available ({}); choose at most {}MiB",
                  copies, trace::format_bytes(bytes), trace::format_bytes(needed), whom,
                  trace::format_bytes(available.bytes), available.limited_by, max / limits::kMiB));
}

}  // namespace wsync::bench

#include "shared/base/check.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "shared/base/log.h"

namespace wsync {

void check_failed(std::string_view condition, std::string_view message,
                  std::source_location where) noexcept {
  // What was logged before tells why. A thread that fails while it logs holds the lock itself.
  if (log_mutex().try_lock()) {
    log_mutex().unlock();
    log_flush(kLogFlush);
  }
  std::fprintf(stderr, "wsync: broken invariant (%.*s) at %s:%u: %.*s\n",
               static_cast<int>(condition.size()), condition.data(), where.file_name(),
               where.line(), static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace wsync

#include "shared/base/fail_point.h"

#include <atomic>
#include <csignal>
#include <utility>

namespace wsync {
namespace {

struct ArmedPoint {
  std::string name;
  std::atomic<std::uint64_t> left = 0;
};
// Never freed: a thread may read it while the process ends.
std::atomic<ArmedPoint*> armed_point = nullptr;

}  // namespace

void arm_fail_point(std::string name, std::uint64_t hits) {
  auto* point = new ArmedPoint{.name = std::move(name)};
  point->left = hits;
  armed_point.store(point, std::memory_order_release);
}

bool fail_point_is_next(std::string_view name) noexcept {
  const ArmedPoint* point = armed_point.load(std::memory_order_acquire);
  return point != nullptr && point->name == name && point->left == 1;
}

void fail_point(std::string_view name) noexcept {
  ArmedPoint* point = armed_point.load(std::memory_order_acquire);
  if (point == nullptr || point->name != name) return;
  if (point->left-- == 1) ::raise(SIGKILL);
}

}  // namespace wsync

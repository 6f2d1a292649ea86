#include "shared/base/huge_pages.h"

#include <algorithm>
#include <fstream>

#include "shared/base/format.h"

namespace wsync {
namespace {

constexpr std::string_view kPoolPath = "sys/kernel/mm/hugepages/hugepages-2048kB";

bool read_pages(const std::filesystem::path& path, std::uint64_t& pages) {
  std::ifstream file(path);
  return static_cast<bool>(file >> pages);
}

}  // namespace

std::string_view huge_pages_name(HugePages huge_pages) noexcept {
  switch (huge_pages) {
    case HugePages::kOff:
      return "off";
    case HugePages::kAdvise:
      return "advise";
    case HugePages::kExplicit:
      return "explicit";
  }
  return "?";
}

// The file names all settings, the chosen one in brackets: "always within_size [advise] never".
std::string shared_huge_pages(const std::filesystem::path& root) {
  std::ifstream file(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string text;
  std::getline(file, text);
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return text.substr(open + 1, close - open - 1);
}

bool gives_on_request(std::string_view shared_huge_pages) noexcept {
  constexpr std::string_view kGiving[] = {"always", "within_size", "advise", "force"};
  return std::ranges::find(kGiving, shared_huge_pages) != std::end(kGiving);
}

Result<HugePagePool> huge_page_pool(const std::filesystem::path& root) {
  const std::filesystem::path folder = root / kPoolPath;
  HugePagePool pool;
  std::uint64_t surplus = 0;
  std::uint64_t overcommit = 0;
  for (const auto& [name, pages] : {std::pair{"nr_hugepages", &pool.total},
                                    {"free_hugepages", &pool.free},
                                    {"resv_hugepages", &pool.promised},
                                    {"surplus_hugepages", &surplus},
                                    {"nr_overcommit_hugepages", &overcommit}})
    if (!read_pages(folder / name, *pages))
      return fail(ErrorCode::kIo, fmt::format("{}: no number of huge pages can be read; the system "
                                              "has no pool of huge pages of 2 MiB",
                                              (folder / name).string()));
  pool.more = overcommit - std::min(overcommit, surplus);
  return pool;
}

Result<> require_huge_pages(std::uint64_t bytes, std::string_view what,
                            const std::filesystem::path& root) {
  const auto pool = huge_page_pool(root);
  if (!pool) return fail(pool.error().with_context(std::string(what)));
  const std::uint64_t needed = huge_pages_of(bytes);
  if (pool->available() >= needed) return {};
  return fail(ErrorCode::kResourceExhausted,
              fmt::format("{} needs {} huge pages of 2 MiB, but the system's pool has {} available "
                          "of {}; reserve more with `sysctl vm.nr_hugepages={}`, soon after the "
                          "system has started",
                          what, needed, pool->available(), pool->total,
                          pool->total + needed - pool->available()));
}

}  // namespace wsync

#include "shared/base/shared_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/huge_pages.h"
#include "shared/base/memory_limit.h"
#include "shared/base/numa.h"
#include "shared/base/planted.h"

// Older C library headers lack these constants. The values are the kernel's.
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26U)
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace wsync {
namespace {

constexpr std::uint64_t kArenaMagic = 0x414e455241435357;  // "WSCARENA"
constexpr std::uint32_t kArenaFormat = 3;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
constexpr std::uint64_t kPageBytes = 4096;
static_assert(kArenaHeaderBytes == kPageBytes);
// Smaller arenas do not ask for huge pages: rounding would add too much to them.
constexpr std::uint64_t kHugeArenaBytesMin = std::uint64_t{64} << 20U;

// The header, exactly as in the file.
struct Header {
  std::uint64_t magic;
  std::uint32_t format;
  ArenaState state;
  std::uint64_t data_bytes;
  ArenaIdentity identity;
  std::uint64_t leaf_sums;
  std::uint64_t page_bytes;  // of the arena; the data begins at the second page
  std::uint32_t is_protected;
};
static_assert(sizeof(Header) <= kArenaHeaderBytes && std::is_trivially_copyable_v<Header>);
// The last word of the header. It is apart from the header because the writer sets it while
// readers use the arena.
constexpr std::size_t kRetiredAt = kArenaHeaderBytes - sizeof(std::uint32_t);

Header read_header(std::span<const std::byte> file) {
  Header header;
  std::memcpy(&header, file.data(), sizeof header);
  return header;
}
void write_header(std::span<std::byte> file, const Header& header) {
  std::memcpy(file.data(), &header, sizeof header);
}

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Where the sums of the leaves begin in the file.
std::uint64_t sums_at(std::uint64_t page_bytes, std::uint64_t data_bytes) {
  return page_bytes + round_up(data_bytes, kPageBytes);
}
std::uint64_t sums_at(const Header& header) {
  return sums_at(header.page_bytes, header.data_bytes);
}

// An arena of huge pages has its header in one of its own. A change of protection would otherwise
// split huge pages, or be refused.
std::uint64_t page_bytes_of(HugePages pages, std::uint64_t data_bytes) {
  if (pages == HugePages::kExplicit) return kHugePageBytes;
  return pages == HugePages::kAdvise && data_bytes >= kHugeArenaBytesMin &&
                 gives_on_request(shared_huge_pages())
             ? kHugePageBytes
             : kPageBytes;
}

std::uint64_t file_bytes_of(const ArenaOptions& options, std::uint64_t page_bytes) {
  return round_up(sums_at(page_bytes, options.data_bytes) + options.leaf_sums * sizeof(WordSum),
                  page_bytes);
}

// What of the file is used, as {offset, bytes} in whole pages.
std::vector<std::pair<std::uint64_t, std::uint64_t>> used_of(const ArenaOptions& options,
                                                             std::uint64_t page_bytes) {
  const std::uint64_t file_bytes = file_bytes_of(options, page_bytes);
  if (options.used.empty()) return {{0, file_bytes}};
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pages;
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    begin = begin / page_bytes * page_bytes;
    end = std::min(round_up(end, page_bytes), file_bytes);
    if (!pages.empty() && begin <= pages.back().first + pages.back().second)
      pages.back().second = std::max(end - pages.back().first, pages.back().second);
    else
      pages.emplace_back(begin, end - begin);
  };
  add(0, page_bytes);
  for (const auto& [offset, bytes] : options.used)
    add(page_bytes + offset, page_bytes + offset + bytes);
  add(sums_at(page_bytes, options.data_bytes), file_bytes);
  return pages;
}

bool is_retired(const MappedRegion& region) {
  auto* word = reinterpret_cast<std::uint32_t*>(region.bytes().data() + kRetiredAt);
  return std::atomic_ref(*word).load(std::memory_order_relaxed) != 0;
}

Result<> set_protection(std::span<std::byte> pages, int protection) {
  if (protection == PROT_READ && planted("arena_left_writable")) return {};
  for (; !pages.empty();
       pages = pages.subspan(std::min<std::size_t>(pages.size(), kMappingSliceBytes)))
    if (::mprotect(pages.data(), std::min<std::size_t>(pages.size(), kMappingSliceBytes),
                   protection) != 0)
      return fail_errno(fmt::format("change the protection of {} bytes of an arena", pages.size()),
                        errno);
  return {};
}

bool set_lock(int fd, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  int rc = 0;
  do rc = ::fcntl(fd, F_OFD_SETLK, &lock);
  while (rc != 0 && errno == EINTR);
  return rc == 0;
}

Result<UniqueFd> reopen_read_only(int fd) {
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  UniqueFd reopened = UniqueFd::made_by([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (!reopened.valid()) return fail_errno("re-open arena " + path + " read-only", errno);
  return reopened;
}

Result<> take_read_lock(int fd) {
  if (set_lock(fd, F_RDLCK)) return {};
  if (errno == EAGAIN || errno == EACCES)
    return fail(ErrorCode::kBusy, "the arena is being written; its writer holds the lease");
  return fail_errno("read lock of an arena", errno);
}

// Whether this descriptor of a process holds a lock of its file.
bool holds_lock(const std::string& process, std::string_view fd) {
  std::ifstream info(fmt::format("/proc/{}/fdinfo/{}", process, fd));
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("lock:")) return true;
  return false;
}

template <class T, class Print>
std::string differs(std::string_view what, const T& expected, const T& found, Print print) {
  return fmt::format("the arena's {} is {}, expected {}", what, print(found), print(expected));
}

Result<> compare(const ArenaIdentity& found, std::uint64_t data_bytes,
                 const ArenaExpectation& expected) {
  const auto number = [](std::uint64_t n) { return std::to_string(n); };
  const auto pair = [](const std::pair<std::uint64_t, std::uint64_t>& p) {
    return fmt::format("{}.{}", p.first, p.second);
  };
  const auto digest = [](const Digest& d) { return d.to_string(); };
  const auto fence = [](const auto& f) {
    return fmt::format("{}/{:016x}{:016x}", f.first, f.second[0], f.second[1]);
  };
  std::string problem;
  if (expected.data_bytes && *expected.data_bytes != data_bytes)
    problem = differs("data size in bytes", *expected.data_bytes, data_bytes, number);
  const std::pair found_version{found.version_epoch, found.version_step};
  if (expected.version && *expected.version != found_version)
    problem = differs("version", *expected.version, found_version, pair);
  const std::pair found_fence{found.fence_epoch, found.fence_run_id};
  if (expected.fence && *expected.fence != found_fence)
    problem = differs("fence", *expected.fence, found_fence, fence);
  if (expected.layout && *expected.layout != found.layout)
    problem = differs("layout digest", *expected.layout, found.layout, digest);
  if (expected.content && *expected.content != found.content)
    problem = differs("content digest", *expected.content, found.content, digest);
  if (problem.empty()) return {};
  return fail(ErrorCode::kRefused,
              problem + "; the writer has reused the arena for another version");
}

}  // namespace

void ReadLease::end() noexcept {
  // Closing alone would leave the lock to a forked child, which shares the open file description.
  if (!planted("lease_left_to_close")) pause();
  fd_.reset();
}

void ReadLease::pause() noexcept {
  // A forked child must not unlock, because it would unlock for its parent.
  if (fd_.valid() && home_.is_here()) (void)set_lock(fd_.get(), F_UNLCK);
}

Result<ReadLease> lock_arena(int fd) {
  auto reopened = WSYNC_TRY(reopen_read_only(fd));
  WSYNC_TRY(take_read_lock(reopened.get()));
  return ReadLease(std::move(reopened));
}

Result<ArenaFile> ArenaFile::of(int fd) {
  struct stat file{};
  if (::fstat(fd, &file) != 0) return fail_errno("stat of an arena", errno);
  return ArenaFile{.device = file.st_dev, .inode = file.st_ino};
}

Result<> ReadLease::retake() { return take_read_lock(fd_.get()); }

std::span<std::byte> WriteLease::data() const noexcept {
  const Header header = read_header(file_);
  return file_.subspan(header.page_bytes, header.data_bytes);
}

void WriteLease::set_identity(const ArenaIdentity& identity) const noexcept {
  Header header = read_header(file_);
  header.identity = identity;
  header.identity.content = {};
  write_header(file_, header);
}

Result<> WriteLease::unprotect() const {
  // Whatever the header says: a write that has failed leaves a part protected.
  Header header = read_header(file_);
  WSYNC_TRY(set_protection(file_.subspan(header.page_bytes), PROT_READ | PROT_WRITE));
  header.is_protected = 0;
  write_header(file_, header);
  return {};
}

Result<> WriteLease::protect(std::uint64_t offset, std::uint64_t bytes) const {
  const std::uint64_t page_bytes = read_header(file_).page_bytes;
  const std::uint64_t begin = round_up(offset, page_bytes);
  const std::uint64_t end = (offset + bytes) / page_bytes * page_bytes;
  if (begin >= end) return {};
  return set_protection(file_.subspan(page_bytes + begin, end - begin), PROT_READ);
}

void WriteLease::complete(const Digest& content) && {
  WSYNC_CHECK(fd_ >= 0, "a write lease is completed once");
  Header header = read_header(file_);
  header.identity.content = content;
  header.state = ArenaState::kComplete;
  write_header(file_, header);
  unlock();
}

void WriteLease::complete(const Digest& content, std::span<const WordSum> leaves) && {
  Header header = read_header(file_);
  WSYNC_CHECK(leaves.size() == header.leaf_sums, "a complete content has a sum for each leaf");
  std::memcpy(file_.data() + sums_at(header), leaves.data(), leaves.size_bytes());
  // What this cannot protect, readers verify.
  const auto done = set_protection(file_.subspan(header.page_bytes), PROT_READ);
  header.is_protected = done ? 1 : 0;
  write_header(file_, header);
  std::move(*this).complete(content);
}

WriteLease::~WriteLease() { unlock(); }

void WriteLease::unlock() noexcept {
  if (fd_ >= 0) (void)set_lock(fd_, F_UNLCK);
  fd_ = -1;
}

std::uint64_t ArenaOptions::file_bytes() const {
  return file_bytes_of(*this, page_bytes_of(huge_pages, data_bytes));
}

Result<SharedArena> SharedArena::create(const ArenaOptions& options) {
  const std::string what = fmt::format("arena {}", options.name);
  HugePages pages = options.huge_pages;
  if (pages == HugePages::kExplicit) {
    const std::uint64_t done = options.done_bytes == nullptr ? 0 : options.done_bytes->load();
    auto arena = make(options, pages, what);
    if (arena || arena.error().code() == ErrorCode::kCancelled) return arena;
    if (options.on_fallback) options.on_fallback(arena.error());
    if (options.done_bytes != nullptr) *options.done_bytes = done;
    pages = HugePages::kAdvise;
  }
  return make(options, pages, what);
}

Result<SharedArena> SharedArena::make(const ArenaOptions& options, HugePages pages,
                                      const std::string& what) {
  const bool is_explicit = pages == HugePages::kExplicit;
  const std::uint64_t page_bytes = page_bytes_of(pages, options.data_bytes);
  const std::uint64_t file_bytes = file_bytes_of(options, page_bytes);
  const auto used = used_of(options, page_bytes);
  std::uint64_t used_bytes = 0;
  for (const auto& [offset, bytes] : used) used_bytes += bytes;
  WSYNC_TRY(is_explicit ? require_huge_pages(used_bytes, what) : require_memory(used_bytes, what));

  const unsigned flags =
      MFD_CLOEXEC | MFD_ALLOW_SEALING | (is_explicit ? MFD_HUGETLB | MFD_HUGE_2MB : 0U);
  UniqueFd fd = UniqueFd::made_by([&] { return ::memfd_create(options.name.c_str(), flags); });
  if (!fd.valid()) return fail_errno(what + ": memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(file_bytes)) != 0)
    return fail_errno(fmt::format("{}: size it to {} bytes", what, file_bytes), errno);
  auto region = MappedRegion::map(fd.get(), file_bytes, true);
  if (!region) return fail(region.error().with_context(what));
  WSYNC_TRY(region->keep_from_children());
  // This must precede the first touch of the pages, otherwise it has no effect. It is only a hint:
  // the system's setting decides.
  if (pages == HugePages::kAdvise)
    (void)::madvise(region->bytes().data(), region->bytes().size(), MADV_HUGEPAGE);
  if (options.numa_node)
    if (const auto placed = prefer_node(region->bytes(), *options.numa_node);
        !placed && options.on_fallback)
      options.on_fallback(placed.error());
  if (options.used.empty())
    if (auto touched = region->populate(true, options.threads, options.stop, options.done_bytes);
        !touched)
      return fail(touched.error().with_context(what));
  for (const auto& [offset, bytes] : used)
    WSYNC_TRY(reserve(fd.get(), offset, bytes, options, what));
  write_header(region->bytes(), {.magic = kArenaMagic,
                                 .format = kArenaFormat,
                                 .state = ArenaState::kEmpty,
                                 .data_bytes = options.data_bytes,
                                 .identity = {},
                                 .leaf_sums = options.leaf_sums,
                                 .page_bytes = page_bytes,
                                 .is_protected = 0});
  // After the mapping: FUTURE_WRITE forbids new writable mappings but keeps the existing one.
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return fail_errno(what + ": seal (Linux 5.1 or newer is needed)", errno);
  return SharedArena(std::move(fd), std::move(*region), is_explicit);
}

// Reserves what populate() did not (everything on old kernels), so that no later write can fail.
Result<> SharedArena::reserve(int fd, std::uint64_t offset, std::uint64_t bytes,
                              const ArenaOptions& options, const std::string& what) {
  for (std::uint64_t done = 0; done < bytes; done += kMappingSliceBytes) {
    if (options.stop.stop_requested())
      return fail(ErrorCode::kCancelled, what + ": stopped while its memory was being reserved");
    const std::uint64_t n = std::min(kMappingSliceBytes, bytes - done);
    if (::fallocate(fd, 0, static_cast<off_t>(offset + done), static_cast<off_t>(n)) != 0)
      return fail_errno(fmt::format("{}: reserve {} bytes", what, bytes), errno);
    if (!options.used.empty() && options.done_bytes != nullptr) *options.done_bytes += n;
  }
  return {};
}

void SharedArena::retire() noexcept {
  // A forked child has no mapping of the arena.
  if (region_.bytes().empty() || !home_.is_here()) return;
  auto* word = reinterpret_cast<std::uint32_t*>(region_.bytes().data() + kRetiredAt);
  if (!planted("arena_not_retired")) std::atomic_ref(*word).store(1, std::memory_order_relaxed);
}

std::uint64_t SharedArena::leaf_sums() const noexcept {
  return read_header(region_.bytes()).leaf_sums;
}
bool SharedArena::is_protected() const noexcept {
  return read_header(region_.bytes()).is_protected != 0;
}
std::uint64_t SharedArena::data_bytes() const noexcept {
  return read_header(region_.bytes()).data_bytes;
}
std::span<const std::byte> SharedArena::data() const noexcept {
  const Header header = read_header(region_.bytes());
  return region_.bytes().subspan(header.page_bytes, header.data_bytes);
}
ArenaState SharedArena::state() const noexcept { return read_header(region_.bytes()).state; }
ArenaIdentity SharedArena::identity() const noexcept {
  return read_header(region_.bytes()).identity;
}

Result<WriteLease> SharedArena::try_write_lease(const ArenaIdentity& identity) {
  if (!planted("write_without_lease") && !set_lock(fd_.get(), F_WRLCK)) {
    if (errno == EAGAIN || errno == EACCES)
      return fail(ErrorCode::kBusy,
                  fmt::format("the arena of version {}.{} is still being read",
                              this->identity().version_epoch, this->identity().version_step));
    return fail_errno("write lock of an arena", errno);
  }
  Header header = read_header(region_.bytes());
  header.state = ArenaState::kWriting;
  write_header(region_.bytes(), header);
  WriteLease lease(fd_.get(), region_.bytes());
  lease.set_identity(identity);
  return lease;
}

void SharedArena::rename(const ArenaIdentity& identity) {
  Header header = read_header(region_.bytes());
  WSYNC_CHECK(header.state == ArenaState::kComplete, "only a complete version is renamed");
  header.identity.fence_epoch = identity.fence_epoch;
  header.identity.fence_run_id = identity.fence_run_id;
  header.identity.version_epoch = identity.version_epoch;
  header.identity.version_step = identity.version_step;
  write_header(region_.bytes(), header);
}

Result<ReadLease> SharedArena::try_read_lease() const { return lock_arena(fd_.get()); }

Result<UniqueFd> SharedArena::share() const { return reopen_read_only(fd_.get()); }

std::vector<int> SharedArena::holders() const {
  struct Close {
    void operator()(DIR* directory) const { ::closedir(directory); }
  };
  using Directory = std::unique_ptr<DIR, Close>;
  std::vector<int> found;
  struct stat self{};
  if (::fstat(fd_.get(), &self) != 0) return found;
  const Directory proc(::opendir("/proc"));
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    int pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, pid).ptr != end || pid == ::getpid()) continue;
    const std::string fds = fmt::format("/proc/{}/fd", pid);
    const Directory list(::opendir(fds.c_str()));
    while (const dirent* file = list ? ::readdir(list.get()) : nullptr) {
      struct stat other{};
      if (::stat(fmt::format("{}/{}", fds, file->d_name).c_str(), &other) == 0 &&
          other.st_ino == self.st_ino && other.st_dev == self.st_dev &&
          holds_lock(entry->d_name, file->d_name)) {
        found.push_back(pid);
        break;
      }
    }
  }
  return found;
}

KeptMappings::Region KeptMappings::find(const ArenaFile& file) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(file);
  return found == regions_.end() ? nullptr : found->second;
}

void KeptMappings::keep(const ArenaFile& file, Region region) {
  const std::lock_guard lock(mutex_);
  regions_.insert_or_assign(file, std::move(region));
}

std::vector<KeptMappings::Region> KeptMappings::take_retired() {
  std::vector<Region> retired;
  const std::lock_guard lock(mutex_);
  std::erase_if(regions_, [&](const auto& entry) {
    if (!is_retired(*entry.second)) return false;
    retired.push_back(entry.second);
    return true;
  });
  return retired;
}

std::vector<KeptMappings::Region> KeptMappings::take_all() {
  std::vector<Region> all;
  const std::lock_guard lock(mutex_);
  for (auto& [file, region] : regions_) all.push_back(std::move(region));
  regions_.clear();
  return all;
}

bool KeptMappings::empty() const {
  const std::lock_guard lock(mutex_);
  return regions_.empty();
}

Result<ArenaView> ArenaView::open(int fd, const ArenaExpectation& expected, unsigned threads,
                                  KeptMappings* kept) {
  // Lock before anything is verified: from here on no writer can change the content.
  auto own = WSYNC_TRY(lock_arena(fd));
  struct stat file{};
  if (::fstat(own.fd(), &file) != 0) return fail_errno("stat of an arena", errno);
  const auto file_bytes = static_cast<std::uint64_t>(file.st_size);
  const int seals = ::fcntl(own.fd(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return fail(ErrorCode::kRefused,
                fmt::format("the descriptor is not a sealed arena: seals {:#x}, expected {:#x}",
                            seals < 0 ? 0 : seals, kSeals));
  if (file_bytes < kArenaHeaderBytes)
    return fail(
        ErrorCode::kRefused,
        fmt::format("the arena has {} bytes, which is smaller than an arena header ({} bytes)",
                    file_bytes, kArenaHeaderBytes));
  const ArenaFile identity{.device = file.st_dev, .inode = file.st_ino};
  auto region = kept != nullptr ? kept->find(identity) : nullptr;
  const bool is_new = region == nullptr;
  if (is_new) {
    auto mapped = WSYNC_TRY(MappedRegion::map(own.fd(), file_bytes, false));
    WSYNC_TRY(mapped.keep_from_children());
    region = std::make_shared<const MappedRegion>(std::move(mapped));
  }
  const Header header = read_header(region->bytes());
  if (header.magic != kArenaMagic || header.format != kArenaFormat)
    return fail(ErrorCode::kRefused,
                fmt::format("the descriptor is not an arena of format {}", kArenaFormat));
  if ((header.page_bytes != kPageBytes && header.page_bytes != kHugePageBytes) ||
      header.page_bytes > file_bytes)
    return fail(
        ErrorCode::kRefused,
        fmt::format("the arena's header says pages of {} bytes, but its file has {} bytes, and "
                    "pages have {} or {}",
                    header.page_bytes, file_bytes, kPageBytes, kHugePageBytes));
  if (header.data_bytes > file_bytes - header.page_bytes)
    return fail(
        ErrorCode::kRefused,
        fmt::format("the arena's header says {} bytes of data, but its file has room for {}",
                    header.data_bytes, file_bytes - header.page_bytes));
  if (header.leaf_sums != 0 &&
      (sums_at(header) > file_bytes ||
       header.leaf_sums > (file_bytes - sums_at(header)) / sizeof(WordSum)))
    return fail(ErrorCode::kRefused,
                fmt::format("the arena's header says {} sums of leaves, but its file of {} bytes "
                            "has no room for them after {} bytes of data",
                            header.leaf_sums, file_bytes, header.data_bytes));
  if (header.state != ArenaState::kComplete)
    return fail(ErrorCode::kRefused, "the arena does not contain a complete version");
  WSYNC_TRY(compare(header.identity, header.data_bytes, expected));
  if (is_new) WSYNC_TRY(region->populate(false, threads));
  if (is_new && kept != nullptr) kept->keep(identity, region);
  if (planted("lease_let_go")) (void)set_lock(own.fd(), F_UNLCK);
  return ArenaView(std::move(own), std::move(region), header.identity, header.page_bytes,
                   header.data_bytes);
}

void ArenaView::suspend() noexcept {
  if (suspended_) return;
  lease_.pause();
  suspended_ = true;
}

Result<> ArenaView::renew() {
  if (!suspended_) return {};
  WSYNC_TRY(lease_.retake());
  const Header header = read_header(region_->bytes());
  if (header.state != ArenaState::kComplete || header.identity != identity_) {
    lease_.pause();
    return fail(ErrorCode::kRefused,
                fmt::format("the arena no longer contains version {}.{}: its writer has reused it "
                            "for version {}.{}",
                            identity_.version_epoch, identity_.version_step,
                            header.identity.version_epoch, header.identity.version_step));
  }
  suspended_ = false;
  return {};
}

std::span<const std::byte> ArenaView::data() const noexcept {
  return region_->bytes().subspan(data_at_, data_bytes_);
}
ArenaIdentity ArenaView::identity() const noexcept {
  return read_header(region_->bytes()).identity;
}
std::span<const WordSum> ArenaView::leaf_sums() const noexcept {
  const auto* first =
      reinterpret_cast<const WordSum*>(region_->bytes().data() + sums_at(data_at_, data_bytes_));
  return {first, read_header(region_->bytes()).leaf_sums};
}
bool ArenaView::is_protected() const noexcept {
  return read_header(region_->bytes()).is_protected != 0;
}
Result<UniqueFd> ArenaView::share() const { return reopen_read_only(lease_.fd()); }
std::shared_ptr<const MappedRegion> ArenaView::end() && {
  lease_.end();
  return std::move(region_);
}

}  // namespace wsync

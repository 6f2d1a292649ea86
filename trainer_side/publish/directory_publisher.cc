#include "trainer_side/publish/directory_publisher.h"

#include <cstring>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/units.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::minutes kLastWrite{1};

// Copies bytes of a tensor out of the arena, where the pieces of a tensor lie one after the other.
void copy_out(const Snapshot& snapshot, std::uint32_t tensor, std::uint64_t offset,
              std::span<std::byte> out) {
  for (const Piece& piece : snapshot.plan()->tensor_pieces(tensor)) {
    if (out.empty()) return;
    if (offset >= piece.tensor_offset + piece.bytes) continue;
    const std::uint64_t inside = offset - piece.tensor_offset;
    const std::size_t bytes = std::min<std::uint64_t>(out.size(), piece.bytes - inside);
    std::memcpy(out.data(), snapshot.data().data() + snapshot.plan()->arena_offset(piece) + inside,
                bytes);
    out = out.subspan(bytes);
    offset += bytes;
  }
}

}  // namespace

struct DirectoryPublisher::Shared {
  WeightDirectoryWriter writer;
  std::atomic<bool> ends = false;  // then `last` is set
  TimePoint last{};                // the trainer waits no longer than until then

  explicit Shared(WeightDirectoryWriter opened) : writer(std::move(opened)) {}
  [[nodiscard]] bool must_stop() const {
    return ends.load(std::memory_order_acquire) && now() >= last;
  }
  // Both run on the worker.
  [[nodiscard]] Result<std::string> write(const Snapshot& snapshot) {
    if (planted("directory_is_not_written")) return std::string();
    if (snapshot.parted())
      return fail(ErrorCode::kRefused,
                  fmt::format("{} is not written to {}: the ranks of its trainer are on several "
                              "hosts, and none of them has all of it",
                              snapshot.version().to_string(), writer.folder()));
    const TimePoint begun = now();
    auto name = writer.write(
        *snapshot.manifest(),
        {.version = snapshot.version(), .content = snapshot.identity().content},
        [&](std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) -> Result<> {
          if (must_stop())
            return fail(ErrorCode::kCancelled, "the trainer ends, and the disc is too slow");
          copy_out(snapshot, static_cast<std::uint32_t>(tensor), offset, out);
          return {};
        });
    if (name)
      log_info("{} is in {}/{}: {} MiB written in {} ms", snapshot.version().to_string(),
               writer.folder(), *name, snapshot.manifest()->total_bytes() / limits::kMiB,
               std::chrono::duration_cast<std::chrono::milliseconds>(now() - begun).count());
    return name;
  }
  [[nodiscard]] Result<std::string> execute(const Order& order) {
    if (!order.goes_back) return write(*order.snapshot);
    auto name = writer.point_to(order.version);
    if (!name && name.error().code() == ErrorCode::kNotFound && order.snapshot)
      return write(*order.snapshot);
    if (name)
      log_info("{}/latest is {} of {} again", writer.folder(), *name, order.version.to_string());
    return name;
  }
};

Result<std::unique_ptr<DirectoryPublisher>> DirectoryPublisher::create(
    Loop& loop, const config::DirectoryConfig& config,
    std::function<void(const std::string&)> on_failure) {
  auto writer = WSYNC_TRY(WeightDirectoryWriter::open(
      config.publish,
      {.keep = config.keep, .shard_bytes = config.shard_bytes, .model_files = config.model_files}));
  log_info("decided versions are written to {}; `latest` is {}", writer.folder(),
           writer.latest().empty() ? "not there yet" : writer.latest());
  return std::unique_ptr<DirectoryPublisher>(new DirectoryPublisher(
      loop, std::move(on_failure), std::make_shared<Shared>(std::move(writer))));
}

DirectoryPublisher::DirectoryPublisher(Loop& loop,
                                       std::function<void(const std::string&)> on_failure,
                                       std::shared_ptr<Shared> shared)
    : on_failure_(std::move(on_failure)),
      shared_(std::move(shared)),
      worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "directory"})) {}

DirectoryPublisher::~DirectoryPublisher() {
  *alive_ = false;
  shared_->last = now() + kLastWrite;
  shared_->ends.store(true, std::memory_order_release);
  if (next_) {
    const auto submitted = worker_->submit([shared = shared_, last = *next_] {
      if (const auto name = shared->execute(last); !name) log_warning("{}", name.error().message());
    });
    if (!submitted) log_warning("{}", submitted.error().message());
  }
  if (facts_.behind != 0)
    log_info("the newest version is written to {} before this trainer ends",
             shared_->writer.folder());
  worker_->stop();
}

void DirectoryPublisher::write(std::shared_ptr<const Snapshot> snapshot) {
  const Version version = snapshot->version();
  add({.version = version, .snapshot = std::move(snapshot)});
}

void DirectoryPublisher::go_back(const Version& version, std::shared_ptr<const Snapshot> snapshot) {
  add({.version = version, .snapshot = std::move(snapshot), .goes_back = true});
}

void DirectoryPublisher::add(Order order) {
  ++facts_.behind;
  next_ = std::move(order);
  begin();
}

void DirectoryPublisher::begin() {
  if (running_ || !next_) return;
  auto order = std::make_shared<Order>(*std::exchange(next_, std::nullopt));
  const Version version = order->version;
  // Versions that are decided from now on are behind when this one has been written.
  const std::uint64_t included = facts_.behind;
  auto name = std::make_shared<Result<std::string>>("");
  const auto submitted = worker_->submit(
      [shared = shared_, order, name] {
        *name = shared->execute(*order);
        order->snapshot.reset();  // so that the next snapshot may have this arena
      },
      [this, alive = alive_, name, version, included] {
        if (!*alive) return;
        running_ = false;
        if (*name) facts_.behind -= std::min(included, facts_.behind);
        end(*name, version);
        begin();
      });
  running_ = submitted.has_value();
  if (!submitted) on_failure_(submitted.error().message());
}

void DirectoryPublisher::end(const Result<std::string>& name, const Version& version) {
  if (name) {
    facts_.written = version;
    if (facts_.behind > 1)
      log_warning(
          "{} is {} versions behind: the disc is slower than the trainer, and the newest is "
          "written next",
          shared_->writer.folder(), facts_.behind);
    return;
  }
  ++facts_.failures;
  on_failure_(name.error().message());
}

}  // namespace wsync::publish

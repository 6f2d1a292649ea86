#include "bench/peers/peers_bench.h"

#include <algorithm>
#include <filesystem>

#include "bench/harness/directory.h"
#include "bench/harness/memory.h"
#include "bench/peers/members.h"
#include "bench/peers/wsync_side.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/base/units.h"
#include "shared/base/unix_socket.h"

namespace wsync::bench {
namespace {

constexpr std::size_t kModels = 2;
// A turn has at most these copies of the model in memory: two of the trainer, one per engine, and
// three in transit (arenas of wsync; a file on tmpfs and a loader's copy of it; queues).
constexpr unsigned kModelsBetween = 3;

// Directory for the sockets of a turn's processes. Its name is short because the length of socket
// paths is limited.
class TurnDirectory {
 public:
  explicit TurnDirectory(const std::string& parent) : path_(parent + "/t") {}
  TurnDirectory(const TurnDirectory&) = delete;
  TurnDirectory& operator=(const TurnDirectory&) = delete;
  ~TurnDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] Result<> make() const { return make_private_directory(path_); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

class PeersRun {
 public:
  PeersRun(const PeersBenchOptions& options, const Interrupt& interrupt, const OnPeerTurn& on_turn)
      : options_(options), interrupt_(interrupt), on_turn_(on_turn) {}

  Result<PeersBenchResult> run() {
    WSYNC_TRY(prepare());
    const auto contenders = static_cast<unsigned>(result_.rows.size()) + 2;
    unsigned done = 0;
    for (unsigned round = 0; round < options_.rounds; ++round)
      for (unsigned turn = 0; turn < contenders; ++turn) {
        const unsigned at = round % 2 == 0 ? turn : contenders - 1 - turn;
        WSYNC_TRY(resume(interrupt_));
        on_turn_(name_of(at), done++, contenders * options_.rounds);
        WSYNC_TRY(turn_of(at, round));
      }
    result_.stolen = load_.since_last().stolen;
    return std::move(result_);
  }

 private:
  Result<> prepare() {
    result_.machine = this_machine();
    result_.engines = options_.engines;
    result_.rounds = options_.rounds;
    result_.disk = options_.directory;
    const auto busy = WSYNC_TRY(busy_with_others(interrupt_));
    result_.others_busy = busy;
    if (options_.checkpoints.size() != kModels)
      return fail(ErrorCode::kInvalidInput,
                  "expected two checkpoints, so that each transfer changes the bytes");
    source_ = WSYNC_TRY(make_source(options_.directory, options_.checkpoints));
    result_.bytes = source_.bytes;
    result_.tensors = source_.tensors.size();
    WSYNC_TRY(require_peers_memory(source_.size, options_.engines));
    for (const FoundPeer& found : options_.peers) {
      PeerRow row{.peer = found.peer, .versions = found.versions, .skipped = found.missing};
      if (row.skipped.empty() && found.peer->files != PeerFiles::kNone)
        row.skipped = lack_of_space(found.peer->files);
      result_.rows.push_back(std::move(row));
    }
    (void)load_.since_last();
    return {};
  }

  // A peer writes the new file while the old one still exists.
  std::string lack_of_space(PeerFiles files) const {
    const std::string& where = files == PeerFiles::kTmpfs ? options_.tmpfs : options_.directory;
    if (files == PeerFiles::kDisk && is_in_memory(where))
      return fmt::format(
          "{} is in memory and not on a disk; choose another directory with --directory", where);
    if (files == PeerFiles::kTmpfs && !is_in_memory(where))
      return fmt::format(
          "{} is not on a file system in memory; choose another directory with --tmpfs", where);
    std::error_code error;
    const auto space = std::filesystem::space(where, error);
    if (error) return fmt::format("{}: {}", where, error.message());
    const std::uint64_t needed = kModels * (source_.size + limits::kMiB);
    if (space.available >= needed) return {};
    return fmt::format(
        "{} has {} bytes free, but {} are needed; free space there, or choose a smaller --size",
        where, space.available, needed);
  }

  std::string_view name_of(unsigned at) const {
    if (at == 0) return "floor";
    return at == 1 ? "wsync" : result_.rows[at - 2].peer->name;
  }

  Result<> turn_of(unsigned at, unsigned round) {
    const TurnDirectory directory(options_.directory);
    WSYNC_TRY(directory.make());
    if (at == 0) return floor_turn(directory.path());
    if (at == 1) return wsync_turn(directory.path());
    PeerRow& row = result_.rows[at - 2];
    if (!row.skipped.empty() || !row.failed.empty()) return {};
    const auto time = peer_turn(options_.peers[at - 2], directory.path());
    if (time) {
      row.seconds.push_back(*time);
      return {};
    }
    if (time.error().code() == ErrorCode::kCancelled) return fail(time.error());
    row.failed = fmt::format("round {}: {}", round + 1, time.error().message());
    return {};
  }

  // Measures the fastest kind of copy on this processor.
  Result<> floor_turn(const std::string& directory) {
    MembersOptions wanted{.directory = directory,
                          .data_directory = directory,
                          .engines = options_.engines,
                          .has_trainer = false};
    wanted.commands.assign(options_.engines, {options_.executable, "bench", "copier"});
    auto copiers = Members::start(std::move(wanted), source_, interrupt_);
    if (!copiers) return fail(copiers.error().with_context("floor"));
    const std::size_t kinds = available_copy_kinds().size();
    double best = 0;
    for (std::size_t kind = kinds > 1 ? 1 : 0; kind < kinds; ++kind)
      for (unsigned i = 0; i <= options_.warm_ups; ++i) {
        const auto copied = (*copiers)->transfer(i % kModels, {{"kind", kind}});
        if (!copied) return fail(copied.error().with_context("floor"));
        if (best == 0 || copied->copy_seconds < best) best = copied->copy_seconds;
      }
    result_.floor_seconds.push_back(best);
    return {};
  }

  Result<> wsync_turn(const std::string& directory) {
    auto side = WsyncSide::start({.executable = options_.executable,
                                  .directory = directory,
                                  .checkpoint = options_.checkpoints.front(),
                                  .engines = options_.engines},
                                 source_, interrupt_);
    if (!side) return fail(side.error().with_context("wsync"));
    for (unsigned i = 0; i <= options_.warm_ups; ++i) {
      const auto published = (*side)->transfer(i % kModels);
      if (!published) return fail(published.error().with_context("wsync"));
      if (i < options_.warm_ups) continue;
      result_.wsync_seconds.push_back(published->seconds);
      result_.wsync_staged_seconds.push_back(published->staged_seconds);
      result_.wsync_paused_seconds.push_back(published->paused_seconds);
    }
    if (auto verified = (*side)->verify(); !verified)
      return fail(verified.error().with_context("wsync"));
    return {};
  }

  Result<double> peer_turn(const FoundPeer& found, const std::string& directory) {
    const PeerFiles files = found.peer->files;
    auto data = WSYNC_TRY(TemporaryDirectory::create(
        files == PeerFiles::kTmpfs ? options_.tmpfs : options_.directory));
    MembersOptions wanted{.directory = directory,
                          .data_directory = data.path(),
                          .variant = std::string(found.peer->variant),
                          .engines = options_.engines};
    const bool one_starts_all = found.peer->start == PeerStart::kMpirun;
    wanted.commands.assign(one_starts_all ? 1 : options_.engines + 1, found.command);
    auto members = WSYNC_TRY(Members::start(std::move(wanted), source_, interrupt_));
    double measured = 0;
    for (unsigned i = 0; i <= options_.warm_ups; ++i) {
      const auto done = WSYNC_TRY(members->transfer(i % kModels));
      measured = done.seconds;
    }
    return measured;
  }

  const PeersBenchOptions& options_;
  const Interrupt& interrupt_;
  const OnPeerTurn& on_turn_;
  CpuLoad load_;
  ModelSource source_;
  PeersBenchResult result_;
};

}  // namespace

Result<> require_peers_memory(std::uint64_t bytes, unsigned engines) {
  const unsigned models = kModels + engines + kModelsBetween;
  return require_copies(models, bytes,
                        fmt::format("for a trainer and {}", counted(engines, "engine")));
}

Result<PeersBenchResult> run_peers_bench(const PeersBenchOptions& options,
                                         const Interrupt& interrupt, const OnPeerTurn& on_turn) {
  return PeersRun(options, interrupt, on_turn).run();
}

}  // namespace wsync::bench

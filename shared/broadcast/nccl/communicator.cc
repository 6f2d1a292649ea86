#include "shared/broadcast/nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/broadcast/nccl/handle.h"
#include "shared/broadcast/nccl/roster.h"

namespace wsync::collective::nccl {
namespace {

constexpr std::uint32_t kSpins = 200;
constexpr auto kShortestRest = std::chrono::microseconds(10);
constexpr auto kLongestRest = std::chrono::microseconds(20);

// The interval between polls: a short spin, then growing sleeps.
class Pace {
 public:
  void rest() {
    if (++spins_ < kSpins) return;
    std::this_thread::sleep_for(rest_);
    rest_ = std::min(rest_ * 5 / 4 + std::chrono::microseconds(1), kLongestRest);
  }

 private:
  std::uint32_t spins_ = 0;
  std::chrono::microseconds rest_ = kShortestRest;
};

// State shared by a group and its communicators.
struct Shared {
  Shared(Site s, std::uint32_t size) : site(std::move(s)), members{site.process}, roster(size) {}

  // Returns success, or the error that broke the group. Asks NCCL about every rank, because it may
  // report an error to one rank while another one is waited for.
  Result<> health() {
    WSYNC_TRY(roster.health());
    const std::lock_guard lock(mutex);
    for (const auto& member : handles)
      if (const auto handle = member.lock())
        if (const auto well = handle->look(); !well) roster.break_with(well.error());
    return roster.health();
  }

  // Handles the end of a handle, in time or not.
  void ended(bool in_time, const Gpu& gpu) const {
    if (in_time) return;
    gpu.abandon(fmt::format(
        "NCCL did not free its communicator within {} s (a background thread still waits for NCCL)",
        seconds(site.end_time)));
  }

  const Site site;
  ncclUniqueId unique{};  // unique to this group, never leaves this process
  std::mutex mutex;
  std::vector<Member> members;                 // under the mutex
  std::vector<std::weak_ptr<Handle>> handles;  // under the mutex
  // Under the mutex. The call that destroys the last communicator of a process frees those of all
  // ranks on their GPUs, so their contexts stay until then, also if their devices are gone.
  std::vector<Gpu> gpus;
  Roster roster;
};

// One rank's broadcast, executed on its stream's worker.
class Turn {
 public:
  Turn(Shared& shared, Handle& handle, const Gpu& gpu, const Roster::Visit& visit,
       const std::stop_token& stop)
      : shared_(shared), handle_(handle), gpu_(gpu), visit_(visit), stop_(stop) {}

  // On failure, ends the started operation and breaks the group.
  Result<> run(const Handle::Transfer& transfer) {
    auto done = execute(transfer);
    if (done) return done;
    shared_.roster.break_with(done.error());
    shared_.ended(handle_.abort(), gpu_);
    return shared_.roster.health();
  }

 private:
  Result<> execute(const Handle::Transfer& transfer) {
    WSYNC_TRY(until("the ranks of its group to meet", [&] { return handle_.settled(); }));
    WSYNC_TRY(shared_.roster.arrive(visit_, stop_));
    if (transfer.bytes > 0) {
      WSYNC_TRY(handle_.broadcast(transfer));
      // The stream must not be queried until NCCL has enqueued the broadcast.
      WSYNC_TRY(until("NCCL to enqueue a broadcast", [&] { return handle_.settled(); }));
      WSYNC_TRY(until("the other ranks of a broadcast, or for their GPUs",
                      [&] { return complete(transfer.stream); }));
      handle_.finished();
    }
    return shared_.roster.depart(visit_, stop_);
  }

  Result<bool> complete(void* stream) {
    if (auto settled = handle_.settled(); !settled) return settled;
    return shared_.site.hardware.idle(stream);
  }

  template <class Ready>
  Result<> until(const char* what, Ready ready) {
    for (Pace pace;; pace.rest()) {
      WSYNC_TRY(shared_.roster.health());
      const auto is = WSYNC_TRY(ready());
      if (is) return {};
      if (stop_.stop_requested())
        return fail(ErrorCode::kCancelled,
                    "a rank's stream was closed in the middle of a broadcast");
      if (now() >= visit_.deadline)
        return fail(
            ErrorCode::kDeadline,
            fmt::format("rank {} of {} waited until its deadline for {} (root {}, {} bytes)",
                        static_cast<std::uint32_t>(visit_.rank), shared_.roster.size(), what,
                        static_cast<std::uint32_t>(visit_.root), visit_.bytes));
    }
  }

  Shared& shared_;
  Handle& handle_;
  const Gpu& gpu_;
  const Roster::Visit visit_;
  const std::stop_token& stop_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Shared> shared, Rank rank, std::unique_ptr<device::Stream> home)
      : shared_(std::move(shared)),
        rank_(rank),
        home_(std::move(home)),
        gpu_(shared_->site.hardware.of(*home_)),
        handle_(std::make_shared<Handle>(*shared_->site.nccl,
                                         Handle::Place{.rank = static_cast<std::uint32_t>(rank),
                                                       .size = shared_->roster.size(),
                                                       .enter = gpu_.enter,
                                                       .leave_time = shared_->site.leave_time,
                                                       .end_time = shared_->site.end_time})) {}
  ~NcclCommunicator() override {
    part();
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, 2 * (shared_->site.leave_time + shared_->site.end_time),
                    [this] { return over_; });
  }

  void part() override {
    if (std::exchange(parted_, true)) return;
    const bool orderly = shared_->roster.leave(rank_);
    on_home([shared = shared_, handle = handle_, orderly, gpu = gpu_] {
      if (gpu.abandoned()) return handle->forsake();
      shared->ended(orderly ? handle->leave() : handle->abort(), gpu);
    });
  }

  // The rendezvous starts on the stream's thread, where the device is current.
  std::weak_ptr<Handle> begin(const ncclUniqueId& id) {
    on_home([shared = shared_, handle = handle_, id] {
      if (auto begun = handle->begin(id); !begun) shared->roster.break_with(begun.error());
    });
    return handle_;
  }

  [[nodiscard]] Rank rank() const noexcept override { return rank_; }
  [[nodiscard]] const Gpu& gpu() const noexcept { return gpu_; }
  [[nodiscard]] std::uint32_t size() const noexcept override { return shared_->roster.size(); }

  [[nodiscard]] Result<> wait_joined(TimePoint deadline) const override {
    for (Pace pace;; pace.rest()) {
      WSYNC_TRY(shared_->health());
      if (handle_->ready()) return {};
      if (now() < deadline) continue;
      const auto here = shared_->roster.here();
      if (here < size())
        return fail(ErrorCode::kDeadline, fmt::format("{} of {} ranks of a group have not joined",
                                                      size() - here, size()));
      return fail(
          ErrorCode::kDeadline,
          fmt::format("NCCL did not connect the {} ranks of a group before the deadline", size()));
    }
  }

  [[nodiscard]] Result<> broadcast(const Broadcast& broadcast, device::Stream& stream) override {
    WSYNC_TRY(check_broadcast(broadcast, rank_, size()));
    const auto native = WSYNC_TRY(shared_->site.hardware.native(stream));
    const bool root = broadcast.root == rank_;
    std::byte* to = broadcast.destination.memory->address() + broadcast.destination.offset;
    // NCCL reads this address only on the root.
    const std::byte* from =
        root ? broadcast.source.memory->address() + broadcast.source.offset : to;
    const Handle::Transfer transfer{.from = from,
                                    .to = to,
                                    .bytes = broadcast.destination.bytes,
                                    .root = static_cast<std::uint32_t>(broadcast.root),
                                    .stream = native};
    const std::lock_guard lock(order_);
    const Roster::Visit visit{.rank = rank_,
                              .sequence = next_,
                              .bytes = transfer.bytes,
                              .root = broadcast.root,
                              .deadline = broadcast.deadline};
    WSYNC_TRY(stream.run([shared = shared_, handle = handle_, gpu = gpu_, visit,
                          transfer](device::StreamTurn& turn) {
      return Turn(*shared, *handle, gpu, visit, turn.stop()).run(transfer);
    }));
    ++next_;
    return {};
  }

  void abort(const Error& reason) override { shared_->roster.break_with(reason); }

  [[nodiscard]] Result<> health() const override { return shared_->health(); }

 private:
  // Executes `work` on the stream of this communicator. A stream that has failed breaks the group.
  // The destructor waits for the last call.
  template <class Work>
  void on_home(Work work) {
    const std::uint32_t number = ++asked_;
    auto queued = home_->run([work = std::move(work)](device::StreamTurn&) -> Result<> {
      work();
      return {};
    });
    if (queued)
      queued = home_->notify([this, number](const Result<>& outcome) { heard(number, outcome); });
    if (!queued) heard(number, queued);
  }
  void heard(std::uint32_t number, const Result<>& outcome) {
    if (!outcome) shared_->roster.break_with(outcome.error());
    const std::lock_guard lock(mutex_);
    over_ = number == kCallsOfALife;
    if (over_) ended_.notify_all();
  }

  static constexpr std::uint32_t kCallsOfALife = 2;  // begin, and that of part()

  const std::shared_ptr<Shared> shared_;
  const Rank rank_;
  bool parted_ = false;
  std::uint32_t asked_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::mutex order_;
  std::uint64_t next_ = 0;
  std::unique_ptr<device::Stream> home_;  // destroyed before the members that its callbacks use
  const Gpu gpu_;
  const std::shared_ptr<Handle> handle_;
};

class NcclGroup final : public Group {
 public:
  explicit NcclGroup(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  [[nodiscard]] std::uint32_t size() const noexcept override { return shared_->roster.size(); }
  [[nodiscard]] Result<std::unique_ptr<Communicator>> join(Rank rank,
                                                           device::Device& device) override {
    auto gpu = WSYNC_TRY(shared_->site.hardware.gpu(device));
    WSYNC_TRY(shared_->roster.join(rank));
    auto joined = join_as(rank, std::move(gpu), device);
    if (!joined) shared_->roster.forget(rank);
    return joined;
  }

 private:
  Result<std::unique_ptr<Communicator>> join_as(Rank rank, std::string gpu,
                                                device::Device& device) {
    auto home = WSYNC_TRY(device.create_stream(device::StreamRole::kBroadcast));
    Member member = shared_->site.process;
    member.rank = rank;
    member.gpu = std::move(gpu);
    const std::lock_guard lock(shared_->mutex);
    auto members = shared_->members;
    members.push_back(std::move(member));
    WSYNC_TRY(check_members(members, shared_->site.ranks_share_gpus));
    shared_->members = std::move(members);
    auto communicator = std::make_unique<NcclCommunicator>(shared_, rank, std::move(home));
    shared_->gpus.push_back(communicator->gpu());
    shared_->handles.push_back(communicator->begin(shared_->unique));
    return std::unique_ptr<Communicator>(std::move(communicator));
  }

  const std::shared_ptr<Shared> shared_;
};

}  // namespace

Result<std::unique_ptr<Group>> make_nccl_group(Site site, std::uint32_t size) {
  auto shared = std::make_shared<Shared>(std::move(site), size);
  WSYNC_TRY(check_members(shared->members));
  const Nccl& nccl = *shared->site.nccl;
  WSYNC_TRY(check(nccl, nccl.ncclGetUniqueId(&shared->unique), "ncclGetUniqueId"));
  return std::unique_ptr<Group>(std::make_unique<NcclGroup>(std::move(shared)));
}

}  // namespace wsync::collective::nccl

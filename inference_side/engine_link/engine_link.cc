#include "inference_side/engine_link/engine_link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/units.h"
#include "shared/base/unix_socket.h"
#include "shared/base/weight_limits.h"

namespace wsync::engine {

namespace {

constexpr std::size_t kReceiveBytes = 256 * limits::kKiB;

Result<> watch(int epoll, int fd, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll, operation, fd, &event) != 0)
    return fail_errno("engine link: epoll_ctl", errno);
  return {};
}

// Assembling whole tensors would take a second place for them there, and nothing of a GPU can be
// adopted: the buffers are the sidecar's.
Result<> check_gpu(const EngineDescription& description) {
  if (description.gpu == nullptr) return {};
  if (description.gpu->kind() != DeviceKind::kCuda)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the rank's weights are said to be on {}, which is no GPU",
                            description.gpu->name()));
  if (description.take != control::TakeMode::kPieces)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("weights on {} are taken as pieces only: whole tensors and adopting are "
                    "for weights in host memory",
                    description.gpu->name()));
  return {};
}

void drain(int fd) {
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) > 0) {
  }
}

}  // namespace

Result<std::unique_ptr<EngineLink>> EngineLink::create(EngineDescription description,
                                                       std::string socket_path, Engine& engine) {
  if (description.replica.empty() || description.replica.size() > limits::kReplicaNameBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the replica's name has {} bytes, 1 to {} are allowed",
                            description.replica.size(), limits::kReplicaNameBytes));
  if (description.world_size == 0 || description.world_size > limits::kReplicaRankCount ||
      description.rank >= description.world_size)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} of {} does not exist; 1 to {} ranks are allowed",
                            description.rank, description.world_size, limits::kReplicaRankCount));
  if (description.tensors.size() > limits::kTensorCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} tensors, at most {} are allowed", description.tensors.size(),
                            limits::kTensorCount));
  WSYNC_TRY(check_gpu(description));
  WSYNC_TRY(check_socket_path(socket_path));
  std::unique_ptr<EngineLink> link(
      new EngineLink(std::move(description), std::move(socket_path), engine));
  if (device::Device* const gpu = link->description_.gpu; gpu != nullptr) {
    link->weights_ = WSYNC_TRY(DeviceWeights::create(*gpu, link->description_.tensors));
  }
  WSYNC_TRY(link->make_descriptors());
  if (link->description_.serving) link->state_ = control::RankState::kServing;
  link->status_.state = link->state_;
  link->arm_timer(0);
  return link;
}

Result<> EngineLink::make_descriptors() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return fail_errno("engine link: epoll_create1", errno);
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return fail_errno("engine link: eventfd", errno);
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_.valid()) return fail_errno("engine link: timerfd_create", errno);
  WSYNC_TRY(watch(epoll_.get(), wake_.get(), EPOLLIN, EPOLL_CTL_ADD));
  return watch(epoll_.get(), timer_.get(), EPOLLIN, EPOLL_CTL_ADD);
}

EngineLink::~EngineLink() { stop(); }

Result<> EngineLink::start() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || thread_.joinable())
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("the link of {} rank {} has been {} already; a link is started once",
                      description_.replica, description_.rank, stopping_ ? "stopped" : "started"));
  }
  thread_ = std::thread([this] {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
      }
      if (auto polled = poll(-1); !polled) {
        note_error(polled.error().message());
        return;
      }
    }
  });
  return {};
}

void EngineLink::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void EngineLink::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void EngineLink::arm_timer(std::int64_t delay_ms) {
  itimerspec spec{};
  spec.it_value.tv_sec = delay_ms / 1000;
  spec.it_value.tv_nsec = delay_ms % 1000 * 1'000'000 + 1;  // all zero would disarm it
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

Result<> EngineLink::poll(int timeout_ms) {
  std::array<epoll_event, 4> events{};
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  if (count < 0 && errno != EINTR) return fail_errno("engine link: epoll_wait", errno);
  for (int i = 0; i < count; ++i) {
    const auto& event = events.at(static_cast<std::size_t>(i));
    if (event.data.fd == wake_.get()) {
      drain(wake_.get());
      on_reports();
    } else if (event.data.fd == timer_.get()) {
      drain(timer_.get());
      on_timer();
    } else if (event.data.fd == socket_.get()) {
      // What this rank reported came before what the sidecar says now.
      on_reports();
      if (socket_.valid() && (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) on_readable();
    }
  }
  if (reading_) read_tensors();
  flush();
  return {};
}

void EngineLink::on_timer() {
  if (!socket_.valid())
    try_connect();
  else if (!welcomed_)
    lose(fmt::format("no welcome within {} ms", limits::kHelloDeadlineMs));
}

void EngineLink::try_connect() {
  auto socket = connect_unix(path_, TimePoint{0});
  if (!socket) {
    note_error(socket.error().message());
    lose({});
    return;
  }
  socket_ = std::move(*socket);
  reader_ = control::FrameReader();
  writer_ = control::FrameWriter();
  welcomed_ = false;
  refused_ = false;
  want_write_ = false;
  if (auto watched = watch(epoll_.get(), socket_.get(), EPOLLIN, EPOLL_CTL_ADD); !watched) {
    lose(watched.error().message());
    return;
  }
  arm_timer(limits::kHelloDeadlineMs);
  send_hello();
}

void EngineLink::send_hello() {
  control::EngineHello hello{.world_size = description_.world_size,
                             .leader = description_.leader,
                             .device = description_.device,
                             .pid = static_cast<std::uint32_t>(::getpid()),
                             .take = description_.take,
                             .state = state_,
                             .active = active_,
                             .step = step_};
  hello.tensors.reserve(description_.tensors.size());
  if (description_.gpu != nullptr) hello.gpu = description_.gpu->uuid();
  for (const auto& tensor : description_.tensors) hello.tensors.push_back(tensor.description);
  send({}, std::move(hello));
}

void EngineLink::lose(const std::string& why) {
  if (welcomed_)
    note_error(fmt::format("the sidecar is lost ({})", why));
  else if (!why.empty() && !refused_)
    note_error(why);
  welcomed_ = false;
  pending_pause_.reset();
  // Nobody will release these leases now, and a trainer must not wait for them.
  prepared_.clear();
  session_.reset();
  reading_.reset();
  if (state_ != control::RankState::kLoaded || description_.take != control::TakeMode::kAdopt)
    loading_hold_.reset();
  // Its session is over, so nothing reads them. A sidecar that lives on frees them when it sees
  // this end of the socket closed.
  buffers_.reset();
  socket_.reset();
  if (planted("engine_resumes_alone") && state_ == control::RankState::kPaused) {
    (void)engine_->resume();
    set_state(control::RankState::kServing);
  }
  backoff_ms_ = std::clamp(backoff_ms_ * 2, limits::kReconnectMinMs, limits::kReconnectMaxMs);
  arm_timer(backoff_ms_);
  const std::lock_guard lock(mutex_);
  status_.attached = false;
}

void EngineLink::on_readable() {
  std::vector<std::byte> buffer(kReceiveBytes);
  while (socket_.valid()) {
    std::vector<UniqueFd> fds;
    const auto received = receive_some(socket_.get(), buffer, fds);
    if (!received) return lose(received.error().message());
    if (*received == 0) return;
    if (auto fed = reader_.feed(std::span(buffer).first(*received), std::move(fds)); !fed)
      return lose(fed.error().message());
    while (socket_.valid()) {
      auto frame = reader_.next();
      if (!frame) {
        {
          const std::lock_guard lock(mutex_);
          ++status_.refusals;
        }
        if (reader_.refused())
          refuse(*reader_.refused(), frame.error().code(), frame.error().message());
        flush();
        return lose(frame.error().message());
      }
      if (!*frame) break;
      handle(std::move(**frame));
    }
  }
}

void EngineLink::flush() {
  if (!socket_.valid()) return;
  const auto done = writer_.flush(socket_.get());
  if (!done) return lose(done.error().message());
  if (want_write_ == *done) {
    want_write_ = !*done;
    const std::uint32_t events = want_write_ ? EPOLLIN | EPOLLOUT : EPOLLIN;
    if (auto watched = watch(epoll_.get(), socket_.get(), events, EPOLL_CTL_MOD); !watched)
      lose(watched.error().message());
  }
}

void EngineLink::send(const control::Envelope& request, control::Message message) {
  if (!socket_.valid()) return;
  const control::Envelope envelope{.fence = fence_,
                                   .round = request.round,
                                   .request = request.request,
                                   .replica = description_.replica,
                                   .rank = description_.rank};
  if (auto pushed = writer_.push(envelope, message); !pushed) return lose(pushed.error().message());
  flush();
}

void EngineLink::note_error(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  // Said once, however often it is tried again.
  if (std::exchange(status_.last_error, sentence) != sentence)
    log_warning("{} rank {}: {}; trying again", description_.replica, description_.rank, sentence);
}

void EngineLink::report(Report report) {
  {
    const std::lock_guard lock(mutex_);
    reports_.push_back(report);
  }
  wake();
}

void EngineLink::report_paused(std::uint64_t step) {
  report({.what = Report::What::kPaused, .step = step});
}
void EngineLink::report_stopped(std::uint64_t step) {
  report({.what = Report::What::kStopped, .step = step});
}
void EngineLink::report_running(std::uint64_t step) {
  report({.what = Report::What::kRunning, .step = step});
}

void EngineLink::on_reports() {
  std::deque<Report> reports;
  {
    const std::lock_guard lock(mutex_);
    reports.swap(reports_);
  }
  for (const Report& report : reports) {
    step_ = report.step;
    if (report.what == Report::What::kRunning) {
      if (state_ == control::RankState::kPaused) set_state(control::RankState::kServing);
      continue;
    }
    if (state_ == control::RankState::kServing) set_state(control::RankState::kPaused);
    if (report.what == Report::What::kStopped) {
      send({}, control::Paused{.step = step_});
      continue;
    }
    send(pending_pause_.value_or(control::Envelope{}), control::Paused{.step = step_});
    pending_pause_.reset();
  }
}

// A pause that came to its end before the resume that overtook it is answered first and under its
// own request: told later, and under none, it would say that a rank which serves has stopped.
void EngineLink::answer_overtaken_pause() {
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(reports_, [&](const Report& report) {
      if (report.what != Report::What::kPaused) return false;
      step_ = report.step;
      return ended = true;
    });
  }
  const control::Envelope pause = *std::exchange(pending_pause_, std::nullopt);
  if (ended) send(pause, control::Paused{.step = step_});
}

LinkStatus EngineLink::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace wsync::engine

// EngineLink: one rank's side of the link to its sidecar. Keeps the rank's state as the protocol
// has it:
//
//   loading --Load--> tainted --all bytes proven--> loaded --Commit--> paused --Resume--> serving
//   --Pause--> paused
//
// A copying load marks the rank tainted before the first byte changes; only a complete, proven load
// ends that. A rank never resumes by itself. When the sidecar is lost, a serving rank goes on, a
// paused one stays paused, leases of versions that are not in use are let go, and the link attaches
// again with growing pauses, telling the state in its hello.
//
// Thread: poll() and what it calls (the Engine) belong to one thread: the caller's, or the link's
// own after start(). report_*(), status() and fd() may be called from any thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "inference_side/engine_link/bucket_taker.h"
#include "inference_side/engine_link/device_weights.h"
#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/load_session.h"
#include "inference_side/engine_link/prepared_version.h"
#include "shared/base/unique_fd.h"
#include "shared/control/frame.h"

namespace wsync::engine {

// "loading", "serving", ...
[[nodiscard]] std::string_view state_name(control::RankState state) noexcept;

struct LinkStatus {
  bool attached = false;  // welcomed by a sidecar
  control::RankState state = control::RankState::kLoading;
  Version active;                  // 0.0 = none
  std::uint64_t refusals = 0;      // frames and commands that were refused
  std::string last_error;          // one sentence; empty = none so far
  std::uint64_t copied_bytes = 0;  // of weights, by all loads so far; none by kAdopt
};

class EngineLink {
 public:
  // Checks the description (replica name, world size, destinations on a GPU) and makes the
  // descriptors; does not connect yet: the first poll() does. `engine` is borrowed and outlives the
  // link.
  [[nodiscard]] static Result<std::unique_ptr<EngineLink>> create(EngineDescription description,
                                                                  std::string socket_path,
                                                                  Engine& engine);
  ~EngineLink();
  EngineLink(const EngineLink&) = delete;
  EngineLink& operator=(const EngineLink&) = delete;

  // Readable when poll() has something to do.
  [[nodiscard]] int fd() const noexcept { return epoll_.get(); }
  // Waits up to timeout_ms (-1: without end) for something to happen and does it. Only kIo: the
  // loss of a sidecar is not an error here. While the sidecar has the tensors read back (`wsync
  // verify`), each call reads at least one of them, and begins no other once 2 ms have passed or
  // something else is to be done.
  [[nodiscard]] Result<> poll(int timeout_ms);
  // Serves the link from a thread of its own until stop(); not together with poll(). kInvalidInput
  // when it was started or stopped before: once in its life.
  [[nodiscard]] Result<> start();
  void stop();

  // This rank has stopped serving after step `step` (every rank calls it, at the leader's stop).
  void report_paused(std::uint64_t step);
  // The same where nobody asked for it: its group broke, or a rank refused a step.
  void report_stopped(std::uint64_t step);
  // This rank serves again, beginning with step `step` (followers; the leader's resume() implies
  // it).
  void report_running(std::uint64_t step);
  [[nodiscard]] LinkStatus status() const;

 private:
  struct Report {
    enum class What : std::uint8_t { kPaused, kStopped, kRunning };
    What what = What::kPaused;
    std::uint64_t step = 0;
  };
  EngineLink(EngineDescription description, std::string socket_path, Engine& engine)
      : description_(std::move(description)),
        path_(std::move(socket_path)),
        engine_(&engine),
        preparer_(description_) {}
  [[nodiscard]] Result<> make_descriptors();
  void arm_timer(std::int64_t delay_ms);
  void wake() noexcept;

  // ---- connection (engine_link.cc) ----
  void try_connect();
  void lose(const std::string& why);
  void on_readable();
  void on_timer();
  void report(Report report);
  void on_reports();
  void answer_overtaken_pause();
  void flush();
  void send(const control::Envelope& request, control::Message message);
  void send_hello();
  void note_error(const std::string& sentence);

  // ---- commands (engine_commands.cc); each may lose() the connection ----
  void handle(control::Frame frame);
  [[nodiscard]] bool accept_envelope(const control::Frame& frame);
  void on_welcome(const control::Envelope& envelope, const control::EngineWelcome& message,
                  std::vector<UniqueFd> fds);
  [[nodiscard]] Result<> check_device(const control::EngineWelcome& message) const;
  [[nodiscard]] Result<std::unique_ptr<BucketTaker>> map_buffers(
      const control::EngineWelcome& message, std::span<const UniqueFd> fds);
  [[nodiscard]] Result<> map_buffers(const control::Load& message);
  void on_refuse(const control::Refuse& message);
  void on_prepare(const control::Envelope& envelope, const control::Prepare& message,
                  std::vector<UniqueFd> fds);
  void on_abort(const control::Abort& message);
  void on_pause(const control::Envelope& envelope, const control::Pause& message);
  void on_load(const control::Envelope& envelope, const control::Load& message);
  void on_bucket_ready(const control::Envelope& envelope, const control::BucketReady& message);
  void on_commit(const control::Envelope& envelope, const control::Commit& message);
  void on_resume(const control::Envelope& envelope);
  [[nodiscard]] Result<> load_from_arena(unsigned threads);
  [[nodiscard]] ThreadPool* copiers(unsigned threads);
  void end_load(Result<> outcome);
  void refuse(const control::Envelope& envelope, ErrorCode code, const std::string& why);
  void set_state(control::RankState state);

  // ---- weights read back (read_back.cc) ----
  void on_read_digests(const control::Envelope& envelope);
  void read_tensors();
  void read_some();
  [[nodiscard]] bool has_more_to_do() const;
  [[nodiscard]] Result<std::vector<Digest>> digests_from(std::uint32_t tensor);
  [[nodiscard]] Result<Digest> digest_of_tensor(std::uint32_t tensor);

  const EngineDescription description_;
  const std::string path_;
  Engine* const engine_;
  UniqueFd epoll_;
  UniqueFd wake_;
  UniqueFd timer_;

  // Connection.
  UniqueFd socket_;
  control::FrameReader reader_;
  control::FrameWriter writer_;
  bool want_write_ = false;
  bool welcomed_ = false;
  bool refused_ = false;  // on this connection: its end is no news
  std::int64_t backoff_ms_ = 0;
  DeviceKind device_kind_ = DeviceKind::kUnified;
  std::uint64_t generation_ = 0;            // of the sidecar that welcomed it
  std::uint64_t buffer_bytes_ = 0;          // of each IPC buffer
  std::unique_ptr<DeviceWeights> weights_;  // on a GPU; null: in host memory
  std::unique_ptr<BucketTaker> buffers_;    // mapped IPC buffers; may be null
  bool buffers_of_load_ = false;            // they came with the Load, and go with it

  // The rank.
  control::RankState state_ = control::RankState::kLoading;
  Version active_;
  Version loaded_;
  std::uint64_t step_ = 0;
  control::Fence fence_;  // highest seen
  std::optional<control::Envelope> pending_pause_;
  Preparer preparer_;
  std::map<Version, std::shared_ptr<const PreparedVersion>> prepared_;
  std::shared_ptr<const PreparedVersion> loading_hold_;  // what session_ or a finished load uses
  std::shared_ptr<const PreparedVersion> active_hold_;   // kAdopt: what the engine serves from
  std::unique_ptr<LoadSession> session_;
  std::unique_ptr<ThreadPool> copiers_;
  control::Envelope load_request_;
  // A ReadDigests that is being answered: each poll() reads some tensors more, so that nothing else
  // waits for all of them.
  struct Reading {
    control::Envelope request;
    control::Digests reply;
  };
  std::optional<Reading> reading_;

  mutable std::mutex mutex_;  // guards what follows
  std::deque<Report> reports_;
  LinkStatus status_;
  bool stopping_ = false;
  std::thread thread_;  // owner's thread only
};

}  // namespace wsync::engine

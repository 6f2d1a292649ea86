// VersionReader: reads staged versions of a sidecar without being an engine of it.
//
// Thread: confined to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "inference_side/reload/load_plan.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/base/unique_fd.h"
#include "shared/control/link.h"
#include "shared/weights/manifest.h"
#include "shared/weights/version.h"

namespace wsync::engine {

class VersionReader {
 public:
  // `name`: of this reader, for the sidecar's log. Connects when a version is opened. kInvalidInput
  // if the path is not valid for a socket.
  [[nodiscard]] static Result<std::unique_ptr<VersionReader>> create(std::string socket_path,
                                                                     std::string name);
  VersionReader(const VersionReader&) = delete;
  VersionReader& operator=(const VersionReader&) = delete;

  // Which version is opened.
  struct Choice {
    std::optional<std::uint64_t> step;  // the one of this step, also if it is not decided yet
    Version after;                      // otherwise the sidecar's target, when it is not this one
  };
  // Waits until the sidecar has the version, at most until `deadline`, and maps it. It waits for
  // the sidecar as well. Returns kDeadline, with what it waited for; kRefused with the sidecar's
  // reason; errors of ArenaView::open(). After kDeadline, the same call continues to wait. One
  // version is open at a time: kBusy if it has not been closed.
  [[nodiscard]] Result<Version> open(const Choice& choice, TimePoint deadline);
  // Ends the lease and the mapping. Does nothing if no version is open.
  void close();

  [[nodiscard]] bool is_open() const noexcept { return view_.has_value(); }
  // Of the version that is open.
  [[nodiscard]] const Manifest& manifest() const noexcept { return *manifest_; }
  // The bytes of one of its tensors, row-major. Valid until close().
  [[nodiscard]] std::span<const std::byte> tensor(std::uint32_t index) const;

 private:
  VersionReader(std::string socket_path, std::string name)
      : socket_path_(std::move(socket_path)), name_(std::move(name)) {}
  // Connects if there is no connection, and asks if the question has not been asked on it.
  [[nodiscard]] Result<> ask(const Choice& choice, TimePoint deadline);
  [[nodiscard]] Result<> map(const control::Prepare& message, std::span<const UniqueFd> fds);
  // What open() waits for, when its deadline has passed.
  [[nodiscard]] std::string why_lost(const Error& error) const;
  [[nodiscard]] Error waited(const Choice& choice) const;

  const std::string socket_path_;
  const std::string name_;
  std::optional<control::Link> link_;
  bool is_answered_ = false;     // on link_
  std::optional<Choice> asked_;  // on link_, and not answered yet
  std::uint64_t request_ = 0;
  std::string why_waiting_;  // the last failure to reach the sidecar; empty: it was reached
  int late_ = 0;             // versions in a row that were gone before they were mapped
  std::optional<ArenaView> view_;
  std::optional<Manifest> manifest_;
  reload::LoadPlan plan_;  // where each tensor is
};

}  // namespace wsync::engine

// VersionReaders: processes that read staged versions and are no engines. Each has asked one
// question (ReadVersion), and gets the arena of the version when there is one that answers it.
//
// A reader is no part of any switch. It takes its own lease on the arena, so nothing here needs to
// know how long it reads, and a reader that hangs is a holder like any other.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/staging/store.h"
#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::agent {

// What readers need of the rest of the sidecar.
struct ReadableVersions {
  using Held = std::shared_ptr<const staging::HeldVersion>;
  // What the replicas of this host serve or switch to; 0.0 if nothing has been decided.
  std::function<Version()> target;
  // All that are staged, ascending.
  std::function<std::vector<Version>()> staged;
  // Returns nullptr if it is not staged.
  std::function<Held(const Version&)> find;
  // Reads and compares its bytes, unless it has been done. `done` may be called inside the call.
  std::function<void(const Held&, std::function<void(Result<>)> done)> verify;
};

class VersionReaders {
 public:
  explicit VersionReaders(ReadableVersions versions) : versions_(std::move(versions)) {}

  // A question of this connection. It takes the place of an earlier one that has no answer.
  void ask(const std::shared_ptr<EngineRank>& reader, std::uint64_t request,
           const control::ReadVersion& question);
  // The connection has ended.
  void lost(const std::shared_ptr<EngineRank>& reader);
  // The versions that are staged, or the target, may have changed.
  void advance();

 private:
  struct Question {
    std::shared_ptr<EngineRank> reader;
    std::uint64_t request = 0;
    control::ReadVersion what;
    Version verifying;  // the version that answers it, until it has been verified; 0.0: none
  };
  // The version that answers; 0.0 while there is none. An error if there will be none.
  [[nodiscard]] Result<Version> find(const control::ReadVersion& question) const;
  // Returns whether the question is over.
  [[nodiscard]] bool answer(Question& question);
  void verified(const std::shared_ptr<EngineRank>& reader, std::uint64_t request,
                const ReadableVersions::Held& version, const Result<>& outcome);

  const ReadableVersions versions_;
  std::vector<Question> questions_;
};

}  // namespace wsync::agent

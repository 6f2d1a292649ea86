// Load: clients that keep an engine generating, and look at what each answer says of its versions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/version.h"
#include "tests/soak/recomputed.h"

namespace wsync::soak {

struct LoadOptions {
  std::uint16_t port = 0;  // of the engine, at 127.0.0.1
  unsigned requests = 1;   // at once, each with a connection and a thread of its own
  std::uint32_t vocabulary = 1;
  std::uint32_t prompt = 4;     // tokens
  std::uint32_t shortest = 64;  // of an answer, in tokens
  std::uint32_t longest = 256;
  Version oldest;  // that is served now
  // Borrowed. Answers of several versions are held to it, and one of 16 others;
  // null: none.
  Recomputed* recomputed = nullptr;
};

struct LoadFigures {
  std::uint64_t answers = 0;  // that have come, right or wrong
  std::uint64_t tokens = 0;   // of those that are right
  std::uint64_t met = 0;      // with tokens of several versions, in spans that are right
  std::uint64_t wrong = 0;
  std::uint64_t recomputed = 0;         // answers, right or wrong
  std::uint64_t recomputed_tokens = 0;  // of those that are right
  double difference_max = 0;            // of these: Recomputed::difference()
  Version newest;                       // that a right answer names
  std::vector<std::string> faults;      // of the first kFaultsTold wrong ones, one sentence each
};
inline constexpr std::size_t kFaultsTold = 8;

// Thread: the owner's.
class Load {
 public:
  // Begins to ask.
  explicit Load(const LoadOptions& options);
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load();  // ends what runs

  // Answers to what is asked from now on are of this version or newer.
  void served(const Version& version);
  // Asks nothing more; what runs goes on.
  void stop_asking() noexcept;
  // Every client has ended: after stop_asking(), or by an error.
  [[nodiscard]] bool ended() const;
  // The first error of a client: a connection that was lost, an answer that did not come or is none
  // (its status is not 200). Clients ask no more after one.
  [[nodiscard]] Result<> check() const;
  [[nodiscard]] LoadFigures figures() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace wsync::soak

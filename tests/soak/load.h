// Load keeps an engine generating with concurrent clients, and checks the versions in each answer.
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
  std::uint16_t port = 0;  // port of the engine at 127.0.0.1
  unsigned requests = 1;   // concurrent requests, each with its own connection and thread
  std::uint32_t vocabulary = 1;
  std::uint32_t prompt = 4;     // tokens of a prompt
  std::uint32_t shortest = 64;  // minimum tokens of an answer
  std::uint32_t longest = 256;
  Version oldest;  // version that is served now
  // Borrowed. Checks all answers with several versions and one of 16 others. Null: no answer is
  // recomputed.
  Recomputed* recomputed = nullptr;
};

struct LoadFigures {
  std::uint64_t answers = 0;  // received answers, right or wrong
  std::uint64_t tokens = 0;   // tokens of right answers
  std::uint64_t met = 0;      // right answers with tokens of several versions
  std::uint64_t wrong = 0;
  std::uint64_t recomputed = 0;         // recomputed answers, right or wrong
  std::uint64_t recomputed_tokens = 0;  // tokens of recomputed answers that are right
  double difference_max = 0;            // maximum of Recomputed::difference() over these answers
  Version newest;                       // newest version in a right answer
  std::vector<std::string> faults;      // first kFaultsTold wrong answers, one sentence each
};
inline constexpr std::size_t kFaultsTold = 8;

// Thread: the owner's.
class Load {
 public:
  // Starts the clients.
  explicit Load(const LoadOptions& options);
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load();  // aborts active requests

  // Requests from now on must be answered by this version or a newer one.
  void served(const Version& version);
  // Sends no new requests. Active requests continue.
  void stop_asking() noexcept;
  // True if every client has ended, after stop_asking() or because of an error.
  [[nodiscard]] bool ended() const;
  // Returns the first error of a client: a lost connection, a missing answer, or a status other
  // than 200. Clients send no request after an error.
  [[nodiscard]] Result<> check() const;
  [[nodiscard]] LoadFigures figures() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace wsync::soak

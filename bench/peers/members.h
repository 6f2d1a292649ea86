// The processes of one contender of `wsync bench peers`, and how they are told to begin.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "bench/peers/member_line.h"
#include "bench/peers/model_source.h"
#include "shared/base/unix_socket.h"

namespace wsync::bench {

struct MembersOptions {
  std::string directory;       // of mode 0700 and short; gets job.json, job.txt, a socket and logs
  std::string data_directory;  // where a peer's files lie on their way
  std::string variant;         // that the script is told
  unsigned engines = 1;
  bool has_trainer = true;  // rank 0; else ranks 1 to `engines` only
  // Of each process in the order of ranks, or one that starts all of them.
  std::vector<std::vector<std::string>> commands;
  std::chrono::seconds start_deadline{120};
  std::chrono::seconds transfer_deadline{120};
};

// Thread: one.
class Members {
 public:
  // Starts them and waits until each has said that it is ready. kPeerLost with the last words of a
  // process that ended, kDeadline, kInvalidInput for what is no line of members, kCancelled.
  // `source` and `interrupt` are borrowed.
  [[nodiscard]] static Result<std::unique_ptr<Members>> start(MembersOptions options,
                                                              const ModelSource& source,
                                                              const Interrupt& interrupt);
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;
  ~Members();  // ends them, and kills what does not end

  struct Transfer {
    double seconds = 0;       // from just before the first was told to the last one's answer
    double copy_seconds = 0;  // of copiers: from the first one's begin to the last one's end
  };
  // One transfer of a model of the source: tells everybody, waits for everybody, and compares every
  // digest with the model's. `more` goes into the line. kDigestMismatch names who holds other
  // bytes; kPeerLost who failed, and why; else as start().
  [[nodiscard]] Result<Transfer> transfer(std::size_t model,
                                          const nlohmann::json& more = nlohmann::json::object());

 private:
  struct Connection {
    UniqueFd socket;
    std::string buffer;
  };
  Members(MembersOptions options, const ModelSource& source, const Interrupt& interrupt)
      : options_(std::move(options)), source_(source), interrupt_(interrupt) {}
  [[nodiscard]] Result<> write_job(const std::string& socket) const;
  [[nodiscard]] Result<> start_children();
  [[nodiscard]] Result<MemberLine> next(TimePoint deadline);
  [[nodiscard]] Result<MemberLine> take_line(Connection& connection, std::size_t end) const;
  [[nodiscard]] Result<> look_at_children();
  [[nodiscard]] Result<> wait_for_words(TimePoint deadline);
  [[nodiscard]] unsigned count() const noexcept;

  const MembersOptions options_;
  const ModelSource& source_;
  const Interrupt& interrupt_;
  std::optional<ListeningSocket> listener_;
  std::vector<Child> children_;
  std::vector<Connection> connections_;
};

// "the trainer", "engine 2"
[[nodiscard]] std::string member_name(unsigned rank);

}  // namespace wsync::bench

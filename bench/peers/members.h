// The processes of one contender of `wsync bench peers`, and the messages that start their
// transfers.
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
  std::string directory;       // mode 0700, short name; gets job.json, job.txt, a socket and logs
  std::string data_directory;  // location of the peer's temporary data files
  std::string variant;         // passed to the script
  unsigned engines = 1;
  bool has_trainer = true;  // includes rank 0; otherwise ranks 1 to `engines` only
  // One command per process in the order of ranks, or a single command that starts all of them.
  std::vector<std::vector<std::string>> commands;
  std::chrono::seconds start_deadline{120};
  std::chrono::seconds transfer_deadline{120};
};

// Thread: one.
class Members {
 public:
  // Starts the processes and waits until each has reported that it is ready. kPeerLost with the
  // last output of a process that ended, kDeadline, kInvalidInput for an invalid line, kCancelled.
  // `source` and `interrupt` are borrowed.
  [[nodiscard]] static Result<std::unique_ptr<Members>> start(MembersOptions options,
                                                              const ModelSource& source,
                                                              const Interrupt& interrupt);
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;
  ~Members();  // ends them, and kills those that do not end

  struct Transfer {
    double seconds = 0;       // from just before the first start message to the last answer
    double copy_seconds = 0;  // copiers only: from the first start of a copy to the last end
  };
  // Transfers one model of the source: starts all processes, waits for all, and compares every
  // digest with the model's. `more` is added to the start message. kDigestMismatch names the
  // process with wrong bytes. kPeerLost names the process that failed, with the reason. Otherwise
  // as start().
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

#include "bench/peers/members.h"

#include <array>
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::bench {
namespace {

constexpr std::chrono::milliseconds kLookAtMembers{100};
constexpr std::chrono::milliseconds kMemberWaitLimit{5'000};
constexpr std::chrono::milliseconds kOneWord{2};
constexpr std::chrono::milliseconds kLastWords{1'000};

}  // namespace

std::string member_name(unsigned rank) {
  return rank == 0 ? "the trainer" : fmt::format("engine {}", rank);
}

unsigned Members::count() const noexcept {
  return options_.engines + (options_.has_trainer ? 1 : 0);
}

Result<std::unique_ptr<Members>> Members::start(MembersOptions options, const ModelSource& source,
                                                const Interrupt& interrupt) {
  std::unique_ptr<Members> members(new Members(std::move(options), source, interrupt));
  const std::string socket = members->options_.directory + "/s";
  WSYNC_TRY(members->write_job(socket));
  auto listener = WSYNC_TRY(ListeningSocket::bind(socket));
  members->listener_.emplace(std::move(listener));
  WSYNC_TRY(members->start_children());
  const TimePoint deadline = now() + members->options_.start_deadline;
  std::vector<bool> ready(members->options_.engines + 1);
  for (unsigned i = 0; i < members->count(); ++i) {
    const auto said = WSYNC_TRY(members->next(deadline));
    if (said.event != MemberEvent::kReady || ready[said.rank])
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format(
              "expected one message 'ready' from each process, received another message from {}",
              member_name(said.rank)));
    ready[said.rank] = true;
  }
  return members;
}

Members::~Members() {
  connections_.clear();  // the processes end when their connections close
  for (Child& child : children_) child.stop(kMemberWaitLimit);
}

Result<> Members::write_job(const std::string& socket) const {
  const nlohmann::json job = {{"engines", options_.engines},
                              {"variant", options_.variant},
                              {"data_directory", options_.data_directory},
                              {"tensors", source_.list},
                              {"models", source_.models},
                              {"socket", socket}};
  WSYNC_TRY(trace::write_text_file(options_.directory + "/job.json", job.dump()));
  // The same data for programs without a JSON parser.
  std::string text =
      fmt::format("engines {}\nsocket {}\nsize {}\n", options_.engines, socket, source_.size);
  for (const std::string& model : source_.models) text += fmt::format("model {}\n", model);
  for (const SourceTensor& tensor : source_.tensors)
    text += fmt::format("tensor {} {}\n", tensor.offset, tensor.bytes);
  return trace::write_text_file(options_.directory + "/job.txt", text);
}

Result<> Members::start_children() {
  for (std::size_t i = 0; i < options_.commands.size(); ++i) {
    const std::size_t rank = i + (options_.has_trainer ? 0 : 1);
    auto child = WSYNC_TRY(
        Child::start({.command = options_.commands[i],
                      .environment = {{"WSYNC_PEER_DIRECTORY", options_.directory},
                                      {"WSYNC_PEER_RANK", std::to_string(rank)},
                                      {"PYTHONDONTWRITEBYTECODE", "1"}},
                      .log_file = fmt::format("{}/process{}.log", options_.directory, rank)}));
    children_.push_back(std::move(child));
  }
  return {};
}

// Ignores the children's output and detects whether one has ended.
Result<> Members::look_at_children() {
  for (Child& child : children_) {
    const auto line = child.line(interrupt_, now() + kOneWord);
    if (!line && line.error().code() != ErrorCode::kDeadline) return fail(line.error());
  }
  return {};
}

// Waits until there is something to read from a connection, or from a child. A child with output
// has most likely ended.
Result<> Members::wait_for_words(TimePoint deadline) {
  std::vector<pollfd> fds{{.fd = interrupt_.fd(), .events = POLLIN, .revents = 0},
                          {.fd = listener_->fd(), .events = POLLIN, .revents = 0}};
  for (const Connection& connection : connections_)
    fds.push_back({.fd = connection.socket.get(), .events = POLLIN, .revents = 0});
  const std::size_t children = fds.size();
  for (const Child& child : children_)
    fds.push_back({.fd = child.output_fd(), .events = POLLIN, .revents = 0});
  const int found = ::poll(fds.data(), fds.size(), static_cast<int>(kLookAtMembers.count()));
  if (found < 0 && errno != EINTR) return fail_errno("poll", errno);
  if (fds[0].revents != 0) return fail(ErrorCode::kCancelled, "interrupted");
  // Connections have priority, because a child may have ended after its last message.
  const auto said = [](const pollfd& fd) { return fd.revents != 0; };
  const auto first_child = fds.begin() + static_cast<std::ptrdiff_t>(children);
  if (std::none_of(fds.begin(), first_child, said) && std::any_of(first_child, fds.end(), said))
    WSYNC_TRY(look_at_children());
  if (now() > deadline)
    return fail(ErrorCode::kDeadline, "not every process answered before the deadline");
  if (found > 0 && fds[1].revents != 0) {
    auto accepted = WSYNC_TRY(listener_->accept());
    if (accepted) connections_.push_back({.socket = std::move(accepted->socket), .buffer = {}});
  }
  return {};
}

Result<MemberLine> Members::take_line(Connection& connection, std::size_t end) const {
  const std::string line = connection.buffer.substr(0, end);
  connection.buffer.erase(0, end + 1);
  auto said = parse_member_line(line, options_.engines + 1);
  if (said && said->event == MemberEvent::kFailed)
    return fail(ErrorCode::kPeerLost, fmt::format("{}: {}", member_name(said->rank), said->why));
  return said;
}

// Returns the next line of any connection.
Result<MemberLine> Members::next(TimePoint deadline) {
  for (;;) {
    for (Connection& connection : connections_) {
      std::size_t end = connection.buffer.find('\n');
      if (end != std::string::npos) return take_line(connection, end);
      std::array<std::byte, kMemberLineBytesMax> piece;
      std::vector<UniqueFd> fds;
      const auto got = receive_some(connection.socket.get(), piece, fds);
      if (!got) {
        // The process is ending. Its exit or its log gives a better error than the closed
        // connection.
        for (const TimePoint until = now() + kLastWords; now() < until;)
          WSYNC_TRY(look_at_children());
        return fail(got.error().with_context("a process closed its connection"));
      }
      connection.buffer.append(reinterpret_cast<const char*>(piece.data()), *got);
      end = connection.buffer.find('\n');
      if (end != std::string::npos) return take_line(connection, end);
      if (connection.buffer.size() > kMemberLineBytesMax)
        return fail(ErrorCode::kInvalidInput, "a process sent a line that is too long");
    }
    WSYNC_TRY(wait_for_words(deadline));
  }
}

Result<Members::Transfer> Members::transfer(std::size_t model, const nlohmann::json& more) {
  nlohmann::json go = more;
  go["go"] = model;
  const std::string text = go.dump() + "\n";
  const TimePoint begin = now();
  for (const Connection& connection : connections_) {
    const auto sent = send_some(connection.socket.get(), std::as_bytes(std::span(text)));
    if (!sent) {
      WSYNC_TRY(look_at_children());
      return fail(sent.error());
    }
  }
  Transfer transfer;
  std::int64_t first_ns = INT64_MAX;
  std::int64_t last_ns = 0;
  std::vector<bool> done(options_.engines + 1);
  for (unsigned i = 0; i < count(); ++i) {
    const auto said = WSYNC_TRY(next(begin + options_.transfer_deadline));
    if (said.event != MemberEvent::kDone || done[said.rank])
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format(
              "expected one message 'done' from each process, received another message from {}",
              member_name(said.rank)));
    done[said.rank] = true;
    if (said.digest != source_.digests[model])
      return fail(ErrorCode::kDigestMismatch,
                  fmt::format("{}: the received bytes have the digest {}, expected {}",
                              member_name(said.rank), said.digest.to_string(),
                              source_.digests[model].to_string()));
    first_ns = std::min(first_ns, said.begin_ns);
    last_ns = std::max(last_ns, said.end_ns);
  }
  transfer.seconds = seconds(now() - begin);
  transfer.copy_seconds = 1e-9 * static_cast<double>(last_ns - first_ns);
  return transfer;
}

}  // namespace wsync::bench

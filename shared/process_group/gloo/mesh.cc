#include "shared/process_group/gloo/mesh.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <filesystem>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"
#include "shared/process_group/rank_words.h"

namespace wsync::collective::gloo {
namespace {

constexpr std::chrono::milliseconds kPollInterval{10};

// Thrown if a file of this rank already exists: the rank has joined already, or a process was
// killed while it joined.
struct Taken final : std::runtime_error {
  Taken() : std::runtime_error("the rank is taken") {}
};

// Gloo's store of small files, with the caller's deadline. The store's own get() always waits for
// half a minute.
class RunStore final : public ::gloo::rendezvous::FileStore {
 public:
  RunStore(const GlooOptions& options, TimePoint deadline)
      : FileStore(options.directory), options_(options), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    if (check({key})) throw Taken();
    files_.add(objectPath(key));
    FileStore::set(key, data);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& /*timeout*/) override {
    wait(keys);
  }
  void wait(const std::vector<std::string>& keys) override {
    while (!check(keys)) {
      if (now() >= deadline_) throw ::gloo::IoException("the deadline has passed");
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  // Returns true if a rank has begun to join. connectFullMesh() first writes its host name under
  // this key.
  [[nodiscard]] bool has(std::uint32_t rank) {
    return check({fmt::format("{}/rank_{}", options_.run, rank)});
  }
  [[nodiscard]] Files take_files() { return std::move(files_); }

 private:
  const GlooOptions& options_;
  const TimePoint deadline_;
  Files files_;
};

sigset_t of_pipe() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

std::shared_ptr<::gloo::transport::Device> make_device(const std::string& address) {
  const SignalsBlocked blocked(
      SignalsBlocked::Which::kAll);  // inherited by the thread that Gloo starts
  const ::gloo::transport::tcp::attr attr(address.c_str());
  return ::gloo::transport::tcp::CreateDevice(attr);
}

// Checks that the address belongs to this host before Gloo does, because Gloo reads the result of a
// failed look-up.
Result<> check_address(const std::string& address) {
  sockaddr_in6 v6{};
  sockaddr_in v4{};
  v6.sin6_family = AF_INET6;
  v4.sin_family = AF_INET;
  const bool is_v4 = ::inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1;
  if (!is_v4 && ::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) != 1)
    return fail(ErrorCode::kInvalidInput, fmt::format("'{}' is not an IP address; name an address "
                                                      "of this host that the other ranks can reach",
                                                      address));
  const UniqueFd fd(::socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int bound = is_v4 ? ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&v4), sizeof v4)
                          : ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
  if (bound == 0) return {};
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format(
          "cannot listen at {}: {}; name an address of this host that the other ranks can reach",
          address, std::strerror(errno)));
}

Result<> check_options(const GlooOptions& options) {
  const auto refuse = [](std::string why) {
    return fail(ErrorCode::kInvalidInput, std::move(why));
  };
  if (options.size < 1 || options.size > kGlooRankCount)
    return refuse(
        fmt::format("a group of {} ranks, expected 1 to {}", options.size, kGlooRankCount));
  if (options.rank >= options.size)
    return refuse(
        fmt::format("rank {} in a group of {}", options.rank, counted(options.size, "rank")));
  if (options.run.empty())
    return refuse("the run of a group has no name; give each run its own name");
  std::error_code error;
  if (!std::filesystem::is_directory(options.directory, error))
    return refuse(
        fmt::format("'{}', where the ranks of run {} must find each other, is not a directory; "
                    "create a directory that all hosts can access",
                    options.directory, options.run));
  return check_address(options.address);
}

Error why_not(const GlooOptions& options, RunStore& store, TimePoint deadline, const char* what) {
  if (now() < deadline)
    return {ErrorCode::kIo, fmt::format("rank {} of run {} cannot connect at {}: {}", options.rank,
                                        options.run, options.address, what)};
  std::vector<std::uint32_t> absent;
  for (std::uint32_t rank = 0; rank < options.size; ++rank)
    if (!store.has(rank)) absent.push_back(rank);
  const std::string why =
      absent.empty() ? fmt::format("all ranks have registered in {}, but not all are connected: {}",
                                   options.directory, what)
                     : fmt::format("{} not registered in {}",
                                   ranks_in_words(absent) + (absent.size() == 1 ? " has" : " have"),
                                   options.directory);
  return {ErrorCode::kDeadline, fmt::format("rank {} of run {} has waited until its deadline; {}",
                                            options.rank, options.run, why)};
}

}  // namespace

SignalsBlocked::SignalsBlocked(Which which) noexcept {
  sigset_t set = of_pipe();
  if (which == Which::kAll) sigfillset(&set);
  pthread_sigmask(SIG_BLOCK, &set, &former_);
}

SignalsBlocked::~SignalsBlocked() {
  const sigset_t pipe = of_pipe();
  const timespec no_time{};
  if (sigismember(&former_, SIGPIPE) == 0) (void)::sigtimedwait(&pipe, nullptr, &no_time);
  pthread_sigmask(SIG_SETMASK, &former_, nullptr);
}

std::chrono::milliseconds time_left(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now());
  return std::max(left, std::chrono::milliseconds(0));
}

Files::~Files() {
  std::error_code ignored;
  for (const std::string& path : paths_) std::filesystem::remove(path, ignored);
}

Result<Mesh> connect(const GlooOptions& options, TimePoint deadline) {
  WSYNC_TRY(check_options(options));
  try {
    RunStore store(options, deadline);
    try {
      auto device = make_device(options.address);
      auto context = std::make_shared<::gloo::rendezvous::Context>(static_cast<int>(options.rank),
                                                                   static_cast<int>(options.size));
      context->setTimeout(time_left(deadline));
      ::gloo::rendezvous::PrefixStore of_run(options.run, store);
      context->connectFullMesh(of_run, device);
      return Mesh{.files = store.take_files(), .context = std::move(context)};
    } catch (const Taken&) {
      return fail(ErrorCode::kRefused,
                  fmt::format("run {} already has a rank {} in {}: either the rank was started "
                              "twice, or a run that was killed while it was starting has left its "
                              "files; empty the directory, or give the run a directory of its own",
                              options.run, options.rank, options.directory));
    } catch (const std::exception& error) {
      return fail(why_not(options, store, deadline, error.what()));
    }
  } catch (const std::exception& error) {
    return fail(ErrorCode::kIo, fmt::format("rank {} of run {} cannot use {}: {}", options.rank,
                                            options.run, options.directory, error.what()));
  }
}

}  // namespace wsync::collective::gloo

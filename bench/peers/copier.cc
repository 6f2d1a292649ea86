#include "bench/peers/copier.h"

#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <latch>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/baseline/pages.h"
#include "bench/harness/machine.h"
#include "bench/peers/member_line.h"
#include "bench/peers/model_source.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/base/thread_pool.h"
#include "shared/base/unix_socket.h"

namespace wsync::bench {
namespace {

constexpr std::chrono::seconds kCopierConnect{10};

// A file in the page cache, mapped for reading.
class MappedFile {
 public:
  static Result<MappedFile> map(const std::string& path, std::uint64_t bytes) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return fail_errno(path, errno);
    void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (at == MAP_FAILED) return fail_errno(path, errno);
    return MappedFile({static_cast<const std::byte*>(at), bytes});
  }
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (!bytes_.empty())
      // NOLINT: the type that mmap returned
      ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

class Copier {
 public:
  static Result<std::unique_ptr<Copier>> create() {
    const char* directory = std::getenv("WSYNC_PEER_DIRECTORY");
    const char* rank = std::getenv("WSYNC_PEER_RANK");
    if (directory == nullptr || rank == nullptr)
      return fail(ErrorCode::kInvalidInput, "only `wsync bench peers` starts this command");
    std::ifstream job_file(std::string(directory) + "/job.json");
    const nlohmann::json job = nlohmann::json::parse(job_file);
    std::ifstream list_file(job.at("tensors").get<std::string>());
    const nlohmann::json list = nlohmann::json::parse(list_file);
    ModelSource source{.size = list.at("size")};
    for (const nlohmann::json& tensor : list.at("tensors"))
      source.tensors.push_back(
          {.info = {}, .offset = tensor.at("offset"), .bytes = tensor.at("bytes")});
    auto target = WSYNC_TRY(Pages::make_private(source.size, PageKind::kHuge));
    const unsigned engines = job.at("engines");
    auto socket = WSYNC_TRY(connect_unix(job.at("socket"), now() + kCopierConnect));
    std::unique_ptr<Copier> made(
        new Copier(std::move(source), std::move(target), std::move(socket)));
    made->rank_ = static_cast<unsigned>(std::atoi(rank));
    made->threads_ = std::max(1U, this_machine().cores / engines);
    made->helpers_ = helpers_for(made->threads_);
    for (const nlohmann::json& path : job.at("models")) {
      auto model = WSYNC_TRY(MappedFile::map(path, made->source_.size));
      made->models_.push_back(std::move(model));
    }
    made->target_.touch();
    return made;
  }

  Result<> run() {
    WSYNC_TRY(say({.event = MemberEvent::kReady, .rank = rank_}));
    for (;;) {
      const auto line = WSYNC_TRY(next_line());
      if (line.empty()) return {};
      const nlohmann::json go = nlohmann::json::parse(line);
      const auto kinds = available_copy_kinds();
      const std::size_t kind = go.value("kind", kinds.size() - 1);
      const std::size_t model = go.at("go");
      if (kind >= kinds.size() || model >= models_.size())
        return fail(ErrorCode::kInvalidInput,
                    "the start command names an unknown model or kind of copy: " + line);
      MemberLine done{.event = MemberEvent::kDone, .rank = rank_};
      const TimePoint begin = now();
      copy(models_[model].bytes(), kinds[kind]);
      const TimePoint end = now();
      done.begin_ns = static_cast<std::int64_t>(begin);
      done.end_ns = static_cast<std::int64_t>(end);
      done.digest = source_digest(source_, target_.bytes());
      WSYNC_TRY(say(done));
    }
  }

 private:
  Copier(ModelSource source, Pages target, UniqueFd socket)
      : source_(std::move(source)), target_(std::move(target)), socket_(std::move(socket)) {}

  void copy(std::span<const std::byte> from, CopyKind kind) {
    const std::uint64_t part = from.size() / threads_ / kSourceAlignment * kSourceAlignment;
    const auto take = [&](unsigned i) {
      const std::uint64_t at = part * i;
      const std::uint64_t bytes = i + 1 == threads_ ? from.size() - at : part;
      copy_streaming(target_.bytes().subspan(at, bytes), from.subspan(at, bytes), kind);
    };
    std::latch done(threads_ - 1);
    for (unsigned i = 1; i < threads_; ++i)
      helpers_->post([&take, &done, i] {
        take(i);
        done.count_down();
      });
    take(0);
    done.wait();
  }

  Result<> say(const MemberLine& line) const {
    const std::string text = member_text(line) + "\n";
    const auto sent = WSYNC_TRY(send_some(socket_.get(), std::as_bytes(std::span(text))));
    if (sent != text.size())
      return fail(ErrorCode::kIo, "the benchmark does not read from this connection");
    return {};
  }

  // Returns the line without its end. Empty if the benchmark has closed the connection.
  Result<std::string> next_line() {
    for (;;) {
      const std::size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      WSYNC_TRY(wait_readable(socket_.get(), now() + std::chrono::hours(24)));
      std::array<std::byte, 256> piece;
      std::vector<UniqueFd> none;
      const auto got = receive_some(socket_.get(), piece, none);
      if (!got && got.error().code() == ErrorCode::kPeerLost) return std::string();
      if (!got) return fail(got.error());
      buffer_.append(reinterpret_cast<const char*>(piece.data()), *got);
    }
  }

  ModelSource source_;
  Pages target_;
  UniqueFd socket_;
  unsigned rank_ = 0;
  unsigned threads_ = 1;
  std::unique_ptr<ThreadPool> helpers_;
  std::vector<MappedFile> models_;
  std::string buffer_;
};

}  // namespace

Result<> run_copier() {
  try {
    auto copier = WSYNC_TRY(Copier::create());
    return copier->run();
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the job has an unexpected format: {}", error.what()));
  }
}

}  // namespace wsync::bench

#include "bench/gpu/reader.h"

#include <csignal>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <vector>

#include "bench/gpu/batch.h"
#include "bench/gpu/timing.h"
#include "shared/base/format.h"
#include "shared/base/unix_socket.h"

namespace wsync::bench {
namespace {

constexpr std::size_t kHandleHexMax = 8192;
constexpr std::chrono::minutes kReaderDeadline{3};
constexpr std::chrono::seconds kStopWaitLimit{10};
constexpr std::chrono::seconds kSocketDeadline{10};
constexpr unsigned kCopiesMax = 100'000;

std::string hex_of(const Bytes& bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

Result<Bytes> bytes_of_hex(const std::string& hex) {
  if (hex.size() % 2 != 0 || hex.size() > kHandleHexMax ||
      hex.find_first_not_of("0123456789abcdef") != std::string::npos)
    return fail(ErrorCode::kInvalidInput,
                "a memory handle must be a hexadecimal number of whole bytes");
  Bytes bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

void answer_with(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

class ReaderProcess {
 public:
  static Result<ReaderProcess> create(const ReaderOptions& options) {
    ReaderProcess made;
    auto device = device::make_device({.kind = DeviceKind::kCuda,
                                       .index = device::DeviceIndex{options.device_index},
                                       .gpu = options.gpu});
    if (!device) return fail(std::move(device).error());
    made.device_ = std::move(*device);
    made.own_ = WSYNC_TRY(made.device_->allocate(options.bytes));
    auto work = WSYNC_TRY(TimedStream::create(*made.device_, device::StreamRole::kReload));
    made.work_ = std::make_unique<TimedStream>(std::move(work));
    if (!options.socket.empty())
      made.socket_ = WSYNC_TRY(connect_unix(options.socket, now() + kSocketDeadline));
    return made;
  }

  Result<std::string> obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "import") return import(words);
    if (verb == "copy") return copy(words);
    return fail(ErrorCode::kInvalidInput, fmt::format("unknown command '{}'", verb));
  }

 private:
  ReaderProcess() = default;

  Result<std::string> import(std::istringstream& words) {
    std::uint64_t bytes = 0;
    std::string hex;
    words >> bytes >> hex;
    auto opaque = WSYNC_TRY(bytes_of_hex(hex));
    auto fd = WSYNC_TRY(receive_descriptor());
    auto memory = WSYNC_TRY(device_->import_memory({.kind = DeviceKind::kCuda,
                                                    .bytes = bytes,
                                                    .fd = std::move(fd),
                                                    .opaque = std::move(opaque)}));
    imported_.push_back(std::move(memory));
    return fmt::format("imported {}", imported_.size() - 1);
  }

  // One byte carries each descriptor.
  Result<UniqueFd> receive_descriptor() {
    if (!socket_.valid())
      return fail(ErrorCode::kInvalidInput, "memory is imported only with --socket");
    WSYNC_TRY(wait_readable(socket_.get(), now() + kSocketDeadline));
    std::byte byte{};
    std::vector<UniqueFd> fds;
    (void)WSYNC_TRY(receive_some(socket_.get(), {&byte, 1}, fds));
    if (fds.size() != 1)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("received {} descriptors, expected 1", fds.size()));
    return std::move(fds.front());
  }

  Result<std::string> copy(std::istringstream& words) {
    std::size_t number = 0;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;
    unsigned times = 0;
    words >> number >> bytes >> offset >> times;
    if (!words || number >= imported_.size() || times == 0 || times > kCopiesMax)
      return fail(ErrorCode::kInvalidInput,
                  "expected `copy N BYTES OFFSET TIMES`, where N is the number of imported memory");
    const device::Memory& from = *imported_[number];
    const Batch batch =
        make_batch({.from = &from, .to = own_.get(), .to_offset = offset, .bytes = bytes});
    if (batch.sums > sums_.size()) sums_.resize(batch.sums);
    const auto sums = std::span(sums_).first(batch.sums);
    const auto taken = work_->run(times, [&](device::Stream& stream) -> Result<> {
      return stream.copy_pieces(batch.pieces, sums);
    });
    if (!taken) return fail(taken.error());
    return fmt::format("copied {} {:x}", taken->count(), check_of(sums));
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Memory> own_;
  std::vector<std::unique_ptr<device::Memory>> imported_;
  std::vector<SplitSum> sums_;  // of the last copy; outlives the stream
  std::unique_ptr<TimedStream> work_;
  UniqueFd socket_;
};

}  // namespace

Result<> run_reader(const ReaderOptions& options) {
  auto process = WSYNC_TRY(ReaderProcess::create(options));
  // SIGTERM is ignored. The process ends in order when its input ends.
  std::signal(SIGTERM, SIG_IGN);
  answer_with("ready");
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = process.obey(line);
    answer_with(answer ? *answer : "failed " + answer.error().message());
  }
  return {};
}

Result<Reader> Reader::start(const std::string& executable, const std::string& log_file,
                             const ReaderOptions& options, const Interrupt& interrupt) {
  auto listening = WSYNC_TRY(ListeningSocket::bind(log_file + ".socket"));
  ReaderOptions all = options;
  all.socket = listening.path();
  auto child = WSYNC_TRY(
      Child::start({.command = {executable, "bench", "gpu-reader", "--gpu", std::to_string(all.gpu),
                                "--device-index", std::to_string(all.device_index), "--bytes",
                                std::to_string(all.bytes), "--socket", all.socket},
                    .environment = {},
                    .log_file = log_file}));
  Reader reader(std::move(child), std::move(all), interrupt);
  if (auto ready = reader.answer("ready"); !ready)
    return fail(ready.error().with_context("a process that reads the buffers"));
  // It has connected before it said so.
  auto accepted = WSYNC_TRY(listening.accept(now() + kSocketDeadline));
  reader.socket_ = std::move(accepted.socket);
  return reader;
}

Reader::~Reader() {
  if (child_) child_->stop(kStopWaitLimit);
}

Result<std::string> Reader::answer(const std::string& verb) {
  auto line = WSYNC_TRY(child_->line(*interrupt_, now() + kReaderDeadline));
  if (line.starts_with("failed ")) return fail(ErrorCode::kRefused, line.substr(7));
  if (!line.starts_with(verb))
    return fail(ErrorCode::kInternal,
                fmt::format("expected a line that begins with '{1}', received '{0}'", line, verb));
  return line.substr(std::min(verb.size() + 1, line.size()));
}

Result<std::size_t> Reader::import(const device::MemoryHandle& handle) {
  const std::byte byte{};
  const int fd = handle.fd.get();
  WSYNC_TRY(wait_writable(socket_.get(), now() + kSocketDeadline));
  (void)WSYNC_TRY(send_some(socket_.get(), {&byte, 1}, {&fd, 1}));
  WSYNC_TRY(child_->say(fmt::format("import {} {}", handle.bytes, hex_of(handle.opaque))));
  const auto number = WSYNC_TRY(answer("imported"));
  return static_cast<std::size_t>(std::stoull(number));
}

Result<Reader::Copied> Reader::copy(const Copy& copy) {
  WSYNC_TRY(child_->say(
      fmt::format("copy {} {} {} {}", copy.mapping, copy.bytes, copy.offset, copy.times)));
  const auto said = WSYNC_TRY(answer("copied"));
  std::istringstream words(said);
  std::int64_t ns = 0;
  Copied copied;
  words >> ns >> std::hex >> copied.check;
  if (!words) return fail(ErrorCode::kInternal, "expected the result of a copy, received: " + said);
  copied.taken = std::chrono::nanoseconds(ns);
  return copied;
}

}  // namespace wsync::bench

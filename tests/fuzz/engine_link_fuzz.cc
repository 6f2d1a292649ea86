// What a sidecar could send to the engine library: any bytes, after a good welcome and a good
// Prepare or without them. Whatever comes, the library neither crashes nor commits bytes that
// differ from the staged ones.
//
// The first byte chooses: bits 0-1 how the engine takes weights, bit 2 a separate device, bit 3 no
// welcome, bit 4 no Prepare, bit 5 the engine serves. The rest goes over the socket as it is.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <span>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "inference_side/engine_link/engine_link.h"
#include "inference_side/reload/load_plan.h"
#include "shared/base/check.h"
#include "shared/base/log.h"
#include "shared/base/shared_memory.h"
#include "shared/base/unix_socket.h"
#include "shared/base/weight_limits.h"
#include "shared/control/link.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"

namespace {

using namespace wsync;

constexpr Version kVersion{.epoch = 1, .step = 1};

// What every input starts from: made once.
struct World {
  Manifest manifest =
      Manifest::create({{.name = "model.embed", .dtype = DType::kU8, .shape = {1200, 1000}},
                        {.name = "model.layers.0.w", .dtype = DType::kBF16, .shape = {64, 32}}})
          .value();
  BucketPlan plan = BucketPlan::create(manifest, limits::kBucketBytesMin).value();
  SharedArena arena =
      SharedArena::create({.name = "fuzz", .data_bytes = plan.arena_bytes(), .threads = 1}).value();
  std::array<UniqueFd, 2> ipc;
  std::string directory;
  ListeningSocket listener = listen();
  std::vector<control::EngineTensor> tensors;
  control::Prepare prepare;

  World() {
    log_init({.level = LogLevel::kOff});
    auto lease = arena.try_write_lease({.version_epoch = kVersion.epoch,
                                        .version_step = kVersion.step,
                                        .layout = manifest.layout_digest()});
    for (std::size_t i = 0; i < lease->data().size(); ++i)
      lease->data()[i] = static_cast<std::byte>(i * 31 >> 3U);
    std::move(*lease).complete({.low = 1});
    for (std::size_t i = 0; i < ipc.size(); ++i) {
      ipc.at(i).reset(::memfd_create("ipc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      WSYNC_CHECK(::ftruncate(ipc.at(i).get(), static_cast<off_t>(plan.largest_bucket())) == 0,
                  "an IPC buffer");
      // Each buffer holds the bucket of its number, so that good BucketReady messages exist.
      const auto bytes = arena.data().subspan(plan.bucket_offset(i), plan.bucket_size(i));
      WSYNC_CHECK(::pwrite(ipc.at(i).get(), bytes.data(), bytes.size(), 0) ==
                      static_cast<ssize_t>(bytes.size()),
                  "an IPC buffer");
      ::fcntl(ipc.at(i).get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    }
    for (const auto& info : manifest.tensors())
      tensors.push_back({.name = info.name, .dtype = info.dtype, .shape = info.shape});
    tensors[1].ranges = {{.dim = 1, .begin = 0, .length = 16}};
    ByteWriter layout;
    manifest.encode(layout);
    prepare = {.version = kVersion,
               .layout_digest = manifest.layout_digest(),
               .layout = std::move(layout).take(),
               .bucket_bytes = plan.bucket_bytes(),
               .arena_bytes = plan.arena_bytes(),
               .is_verified = true};
  }
  ~World() { std::filesystem::remove_all(directory); }
  ListeningSocket listen() {
    std::string pattern = (std::filesystem::temp_directory_path() / "wsync-fuzz-XXXXXX").string();
    directory = ::mkdtemp(pattern.data());
    return ListeningSocket::bind(directory + "/engine.sock").value();
  }
};

class CheckedEngine final : public engine::Engine {
 public:
  CheckedEngine(const World& world, control::TakeMode take, bool serving) {
    description.replica = "r0";
    description.take = take;
    description.serving = serving;
    const auto plan = reload::LoadPlan::make(world.manifest, world.plan, world.tensors).value();
    for (std::size_t t = 0; t < world.tensors.size(); ++t) {
      memory_.emplace_back(plan.tensors()[t].shard.bytes());
      expected_.push_back(reload::expected_digest(plan.tensors()[t], world.arena.data()));
    }
    for (std::size_t t = 0; t < world.tensors.size(); ++t)
      description.tensors.push_back({.description = world.tensors[t],
                                     .destination = take == control::TakeMode::kPieces
                                                        ? std::span(memory_[t])
                                                        : std::span<std::byte>()});
  }
  Result<> pause(const engine::PauseRequest&) override {
    link->report_paused(1);
    return {};
  }
  Result<> load_begin(const Version&) override { return {}; }
  Result<engine::Answer> load_layer(const Version&, std::uint32_t,
                                    std::span<const engine::LayerTensor> tensors) override {
    if (description.take == control::TakeMode::kPieces) return {};
    for (const auto& t : tensors) memory_[t.tensor].assign(t.bytes.begin(), t.bytes.end());
    return {};
  }
  Result<engine::Answer> commit(const Version& version) override {
    if (version != kVersion) return {};  // a version that the input itself has prepared
    for (std::size_t t = 0; t < memory_.size(); ++t)
      WSYNC_CHECK(
          tensor_digest(description.tensors[t].description.name, memory_[t]) == expected_[t],
          "a committed version holds the staged bytes");
    return {};
  }
  Result<> resume() override { return {}; }
  Result<> read_tensor(std::uint32_t tensor, std::uint64_t offset,
                       std::span<std::byte> out) override {
    std::copy_n(memory_[tensor].begin() + static_cast<std::ptrdiff_t>(offset), out.size(),
                out.begin());
    return {};
  }

  engine::EngineDescription description;
  engine::EngineLink* link = nullptr;

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<Digest> expected_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  if (size == 0) return 0;
  const unsigned choice = data[0];
  const bool separate = (choice & 4U) != 0;
  CheckedEngine engine(world, static_cast<control::TakeMode>(std::min(choice & 3U, 2U)),
                       (choice & 32U) != 0);
  // A rank whose connection was closed may have connected again before its input ended. Its
  // connection still waits here, although nobody is at its other end any more.
  while (world.listener.accept().value()) {
  }
  auto link = engine::EngineLink::create(engine.description, world.listener.path(), engine).value();
  engine.link = link.get();
  WSYNC_CHECK(link->poll(-1).has_value(), "connects");
  control::Link peer(
      std::move(world.listener.accept(now() + std::chrono::seconds(5)).value().socket));
  const control::Envelope envelope{.replica = "r0"};
  const auto send = [&](const control::Message& message, std::vector<UniqueFd> fds) {
    WSYNC_CHECK(
        peer.send(envelope, message, std::move(fds), now() + std::chrono::seconds(5)).has_value(),
        "is sent");
    WSYNC_CHECK(link->poll(0).has_value(), "is served");
  };
  std::vector<UniqueFd> fds;
  if ((choice & 8U) == 0) {
    if (separate)
      for (const auto& fd : world.ipc) fds.emplace_back(::dup(fd.get()));
    send(control::EngineWelcome{.generation = 1,
                                .device_kind =
                                    separate ? DeviceKind::kSeparate : DeviceKind::kUnified,
                                .buffer_bytes = world.plan.largest_bucket()},
         std::move(fds));
  }
  if ((choice & 16U) == 0) {
    fds.clear();
    if (!separate) fds.push_back(world.arena.share().value());
    send(world.prepare, std::move(fds));
  }
  std::span<const std::byte> rest = std::as_bytes(std::span(data, size)).subspan(1);
  while (!rest.empty()) {
    const auto sent = send_some(peer.fd(), rest);
    if (!sent) break;  // it has closed the connection
    rest = rest.subspan(*sent);
    WSYNC_CHECK(link->poll(0).has_value(), "is served");
    std::vector<std::byte> answers(1U << 16U);
    std::vector<UniqueFd> none;
    while (const auto got = receive_some(peer.fd(), answers, none))
      if (*got == 0) break;
  }
  WSYNC_CHECK(link->poll(0).has_value(), "is served");
  return 0;
}

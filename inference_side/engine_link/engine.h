// Engine: what wsync asks of an inference engine, one rank of a replica. The link
// (link/engine_link.h) drives it as the sidecar says; the C API (<wsync/engine.h>) is this
// interface with function pointers.
//
// Thread: every method is called from the thread that serves the link, one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/control/messages.h"
#include "shared/device/device.h"
#include "shared/weights/version.h"

namespace wsync::engine {

// A tensor of this rank and, for TakeMode::kPieces, where its bytes lie.
struct RankTensor {
  control::EngineTensor description;
  // kPieces: the rank's own part of the tensor, dense and row-major, exactly as long as its shape,
  // dtype and ranges say. Borrowed: it stays in place while the link lives. With a `gpu`: addresses
  // of its memory, inside one allocation, which the host never reads or writes. Other modes: empty.
  std::span<std::byte> destination;
};

// Who this rank is and what it takes: its part of the manifest. Fixed while the link lives.
struct EngineDescription {
  std::string replica;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  bool leader = true;
  std::uint32_t device = 0;  // index of the sidecar's device
  control::TakeMode take = control::TakeMode::kPieces;
  bool serving =
      false;  // it serves (without a version) when it attaches, instead of waiting to be loaded
  std::vector<RankTensor> tensors;
  // Of kind kCuda: whose memory has the destinations; kPieces only. Borrowed, outlives the link.
  // Null: they are in host memory.
  device::Device* gpu = nullptr;
};

// A tensor of a layer that has come.
struct LayerTensor {
  std::uint32_t tensor = 0;  // index into EngineDescription::tensors
  std::span<const std::byte> bytes;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Leader only: end serving at a step that all ranks agree on. Returns at once; every rank then
  // tells its own link with report_paused() when it has stopped. `deadline_ms`: how long the
  // sidecar waits; it then resumes the old version.
  [[nodiscard]] virtual Result<> pause(PauseMode mode, std::uint32_t deadline_ms) = 0;
  // The weights are about to change (kPieces, kWhole): from here on they belong to no version until
  // commit().
  [[nodiscard]] virtual Result<> load_begin(const Version& version) = 0;
  // A complete layer, in layer order. kPieces: the bytes lie at their destinations, on a GPU too:
  // no work that writes there is under way. kWhole: `bytes` are valid during the call. kAdopt: they
  // are mapped read-only and valid until another version has been committed.
  [[nodiscard]] virtual Result<> load_layer(const Version& version, std::uint32_t layer,
                                            std::span<const LayerTensor> tensors) = 0;
  // Every byte of `version` has come and is proven. The rank stays paused.
  [[nodiscard]] virtual Result<> commit(const Version& version) = 0;
  // Leader only: serve. Followers go on when the leader's next step reaches them, and then call
  // report_running(). Also ends a pause() that was not honoured before its deadline.
  [[nodiscard]] virtual Result<> resume() = 0;
  // kWhole only: bytes of a tensor as held, for the digest; `offset` and `out` are inside the
  // rank's part. kRefused when the engine cannot give the checkpoint's bytes back.
  [[nodiscard]] virtual Result<> read_tensor(std::uint32_t tensor, std::uint64_t offset,
                                             std::span<std::byte> out) = 0;

  // ---- news of the link; nothing depends on what an engine makes of them ----

  virtual void on_attached() {}
  // A version can be loaded from now on.
  virtual void on_prepared(const Version& /*version*/) {}
  // One of the `of` buckets has been taken and compared with its checksums; its acknowledgement
  // follows.
  virtual void on_bucket(const Version& /*version*/, std::uint64_t /*bucket*/,
                         std::uint64_t /*of*/) {}
  // Every byte has come and is proven; commit() may follow.
  virtual void on_loaded(const Version& /*version*/, std::uint64_t /*bytes*/) {}
};

}  // namespace wsync::engine

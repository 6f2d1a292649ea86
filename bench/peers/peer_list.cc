#include "bench/peers/peer_list.h"

#include <algorithm>

#include "shared/base/format.h"

namespace wsync::bench {

std::span<const Peer> all_peers() {
  static const std::vector<Peer> kPeers{
      {.name = "raw-tmpfs",
       .title = "raw file on tmpfs",
       .how = "the bytes of all tensors are written to one file on tmpfs, which engines read into "
              "their memory",
       .script = "raw_file.py",
       .files = PeerFiles::kTmpfs},
      {.name = "safetensors-tmpfs",
       .title = "safetensors on tmpfs",
       .how = "save_file on tmpfs; engines copy each tensor into their existing parameter",
       .script = "safetensors_file.py",
       .variant = "tmpfs",
       .files = PeerFiles::kTmpfs,
       .modules = {"torch", "safetensors", "numpy"}},
      {.name = "safetensors-disk",
       .title = "safetensors on disk, cached",
       .how = "save_file on a disk, not synced; engines read from the page cache",
       .script = "safetensors_file.py",
       .variant = "disk",
       .files = PeerFiles::kDisk,
       .modules = {"torch", "safetensors", "numpy"}},
      {.name = "safetensors-disk-cold",
       .title = "safetensors on disk, not cached",
       .how = "save_file on a disk, synced and dropped from the page cache (POSIX_FADV_DONTNEED) "
              "before engines read the file",
       .script = "safetensors_file.py",
       .variant = "disk_cold",
       .files = PeerFiles::kDisk,
       .modules = {"torch", "safetensors", "numpy"}},
      {.name = "gloo-buckets",
       .title = "Gloo broadcast, buckets",
       .how = "torch.distributed broadcast of buckets of 64 MiB, which are packed and unpacked "
              "during the broadcast",
       .script = "gloo_broadcast.py",
       .variant = "buckets",
       .modules = {"torch", "numpy"}},
      {.name = "gloo-tensors",
       .title = "Gloo broadcast, by tensor",
       .how = "torch.distributed broadcast of each tensor in place",
       .script = "gloo_broadcast.py",
       .variant = "tensors",
       .modules = {"torch", "numpy"}},
      {.name = "zeromq",
       .title = "ZeroMQ",
       .how = "PUSH to each engine over ipc in messages of 8 MiB that share the trainer's memory",
       .script = "zeromq_push.py",
       .modules = {"zmq"}},
      {.name = "openmpi",
       .title = "Open MPI broadcast",
       .how = "MPI_Bcast of each tensor in place",
       .script = "mpi_broadcast.py",
       .start = PeerStart::kMpirun,
       .modules = {"mpi4py"},
       .program = "mpirun",
       .package = "openmpi-bin"},
      {.name = "ucx",
       .title = "UCX",
       .how = "a tagged message for each tensor and engine, from memory to memory",
       .script = "ucx_tags",
       .start = PeerStart::kProgram},
      {.name = "redis",
       .title = "Redis",
       .how = "SET and GET of values of 64 MiB over a Unix socket; engines get one value while the "
              "next one is set",
       .script = "redis_chunks.py",
       .modules = {"redis"},
       .program = "redis-server",
       .package = "redis-server"},
  };
  return kPeers;
}

std::string peer_names() {
  std::vector<std::string_view> names;
  for (const Peer& peer : all_peers()) names.push_back(peer.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<std::vector<const Peer*>> pick_peers(std::span<const std::string> names) {
  for (const std::string& name : names)
    if (std::ranges::find(all_peers(), name, &Peer::name) == all_peers().end())
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("'{}' is not a peer, expected names from: {}", name, peer_names()));
  std::vector<const Peer*> picked;
  for (const Peer& peer : all_peers())
    if (names.empty() || std::ranges::find(names, peer.name) != names.end())
      picked.push_back(&peer);
  return picked;
}

}  // namespace wsync::bench

// The NCCL backend: GPUs, one per rank.
//
// The threads of a rank's streams drive its communicator. A dedicated stream starts and ends it; a
// broadcast runs on the stream on which it was enqueued. Every rank of a process therefore enters
// NCCL on its own thread, and ncclGroupStart, which lets one thread enter for several ranks, is not
// needed. A broadcast of any size is one ncclBroadcast.
//
// A rank polls a broadcast: the stream, NCCL's asynchronous error, the group, the stop of the
// stream, and the deadline. If one of them ends the broadcast early, the group is broken and every
// rank aborts its own communicator. If NCCL does not return from that within Site::end_time, the
// rank's GPU is abandoned: NCCL would accept another communicator there, but the hanging work may
// still write to the buffers.
#pragma once

#include <cstdint>
#include <memory>

#include "shared/broadcast/communicator.h"
#include "shared/broadcast/nccl/hardware.h"

namespace wsync::collective::nccl {

// kRefused if this process cannot take part in any group (members.h).
[[nodiscard]] Result<std::unique_ptr<Group>> make_nccl_group(Site site, std::uint32_t size);

}  // namespace wsync::collective::nccl

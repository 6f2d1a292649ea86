// The NCCL backend: GPUs, one for each rank.
//
// Each rank's communicator is driven by the threads of that rank's streams: a stream of its own
// starts it and takes it down, and a broadcast runs on the stream that it was enqueued on. So every
// rank of a process enters NCCL on its own thread, and no ncclGroupStart is needed, which exists to
// let one thread enter for several ranks. A broadcast of any size is one ncclBroadcast.
//
// A broadcast is waited for by polling: the stream, NCCL's asynchronous error, the group, the stop
// of the stream, the deadline. Whatever ends it early breaks the group, and every rank aborts its
// own communicator. Where NCCL does not come back from that (Site::end_time), the rank's GPU is
// abandoned: NCCL would take another communicator there, but what hangs may still write to the
// buffers.
#pragma once

#include <cstdint>
#include <memory>

#include "shared/broadcast/communicator.h"
#include "shared/broadcast/nccl/hardware.h"

namespace wsync::collective::nccl {

// kRefused when this process cannot take part in any group (members.h).
[[nodiscard]] Result<std::unique_ptr<Group>> make_nccl_group(Site site, std::uint32_t size);

}  // namespace wsync::collective::nccl

#include "shared/transport/tcp/tcp_sink.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/transport/limits.h"
#include "shared/transport/tcp/tcp_source.h"
#include "shared/transport/tcp/transfer.h"

namespace wsync::transport::tcp {
namespace {

// The base of a version that is wanted as its changes alone.
Result<> check_base(const FetchRequest& wanted) {
  const FetchBase& base = *wanted.base;
  if (base.data.size() != wanted.data_bytes || base.sums.size() != wanted.leaves->all().size() ||
      !base.blocks)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the base {} has {} bytes and the sums of {} leaves, the version that "
                            "is wanted as changes from it has {} bytes and {} leaves",
                            base.version.to_string(), base.data.size(), base.sums.size(),
                            wanted.data_bytes, wanted.leaves->all().size()));
  return {};
}

// It names every bucket once.
Result<> check_order(const FetchRequest& wanted) {
  std::vector<bool> is_named(wanted.buckets.size(), false);
  for (const std::uint64_t bucket : wanted.order)
    if (bucket < is_named.size()) is_named[bucket] = true;
  if (wanted.order.size() == is_named.size() && std::ranges::all_of(is_named, std::identity()))
    return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("an order of {} buckets, which are not the {} of the version",
                          wanted.order.size(), wanted.buckets.size()));
}

Result<> check_wanted(const FetchRequest& wanted) {
  if (!wanted.wants_changes_alone() && wanted.into.size() != wanted.data_bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the staging arena has {} bytes, the version needs {}{}",
                            wanted.into.size(), wanted.data_bytes,
                            wanted.into.empty() ? ", or the sums of a base, if it shall come as "
                                                  "changes alone"
                                                : ""));
  if (!wanted.leaves || wanted.leaves->bucket_count() != wanted.buckets.size())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("the leaves of {} buckets are known, the version has {}",
                    wanted.leaves ? wanted.leaves->bucket_count() : 0, wanted.buckets.size()));
  if (wanted.wants_changes_alone()) WSYNC_TRY(check_base(wanted));
  if (!wanted.have.empty() && wanted.have.size() != wanted.buckets.size())
    return fail(ErrorCode::kInvalidInput, fmt::format("{} buckets are marked, the version has {}",
                                                      wanted.have.size(), wanted.buckets.size()));
  if (!wanted.in_full.empty() && wanted.in_full.size() != wanted.buckets.size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} buckets are marked as asked for in full, the version has {}",
                            wanted.in_full.size(), wanted.buckets.size()));
  if (!wanted.order.empty()) WSYNC_TRY(check_order(wanted));
  for (std::size_t i = 0; i < wanted.buckets.size(); ++i) {
    const BucketWindow window = wanted.buckets[i];
    if (window.bytes > limits::kBucketBytesMax || window.offset > wanted.data_bytes ||
        window.bytes > wanted.data_bytes - window.offset)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("bucket {} ([{}, +{}]) is outside of the arena's {} bytes", i,
                              window.offset, window.bytes, wanted.data_bytes));
  }
  return {};
}

}  // namespace

PrepareChannels plain_channels(bool is_network_trusted) {
  return [=](const FetchRequest&, const TcpAddress& source) -> Result<ChannelMaker> {
    if (!is_network_trusted && !source.is_loopback()) return fail(beyond_loopback(source));
    return [] { return std::make_shared<PlainChannel>(); };
  };
}

TcpSink::TcpSink(UvThread& thread, Post post, TcpSinkOptions options)
    : thread_(thread), post_(std::move(post)), options_(std::move(options)) {
  options_.streams = std::clamp<std::uint64_t>(options_.streams, 1, limits::kStreamCountMax);
}

TcpSink::~TcpSink() { cancel(); }

Result<> TcpSink::receive(FetchRequest wanted, SinkCallbacks callbacks) {
  if (session_ && session_->is_active)
    return fail(ErrorCode::kBusy, "a transfer is under way; cancel it first");
  auto address = WSYNC_TRY(parse_tcp_address(wanted.source));
  WSYNC_TRY(check_wanted(wanted));
  auto make_channel = WSYNC_TRY(options_.prepare(wanted, address));
  session_ = std::make_shared<Session>(Session{.callbacks = std::move(callbacks)});
  TransferEvents events{.on_bucket =
                            [post = post_, session = session_](ArrivedBucket arrived) {
                              post([session, arrived = std::move(arrived)] {
                                if (session->is_active) session->callbacks.on_bucket(arrived);
                              });
                            },
                        .on_leaves = nullptr,
                        .on_done =
                            [post = post_, session = session_] {
                              post([=] {
                                if (std::exchange(session->is_active, false))
                                  session->callbacks.on_done(std::nullopt);
                              });
                            },
                        .on_failure =
                            [post = post_, session = session_](StreamFailure failure) {
                              post([=] {
                                if (std::exchange(session->is_active, false))
                                  session->callbacks.on_failure(failure);
                              });
                            }};
  if (session_->callbacks.on_leaves)
    events.on_leaves = [post = post_, session = session_](ArrivedLeaves arrived) {
      post([session, arrived = std::move(arrived)]() mutable {
        if (session->is_active) session->callbacks.on_leaves(std::move(arrived));
      });
    };
  transfer_ = std::make_shared<Transfer>(std::move(wanted), address, std::move(make_channel),
                                         std::move(events));
  thread_.post([this_loop = thread_.loop(), transfer = transfer_, streams = options_.streams] {
    transfer->start(this_loop, streams);
  });
  return {};
}

void TcpSink::cancel() {
  if (session_) session_->is_active = false;
  if (!transfer_) return;
  thread_.run([&] { transfer_->stop(); });
  transfer_.reset();
}

}  // namespace wsync::transport::tcp

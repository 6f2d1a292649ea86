// What the tests of relay chains share: the data side of each process of a chain.
#pragma once

#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>

#include "shared/transport/make_transport.h"
#include "tests/contract/transport/stream_fixture.h"
#include "tests/support/private_directory.h"

namespace wsync::transport {

// One process's data side: what it serves and what it receives.
struct Host {
  Host(std::unique_ptr<Transport> made, std::uint64_t bytes)
      : transport(std::move(made)),
        source(transport->listen().value()),
        receiver(transport->make_sink({}).value(), bytes) {}

  // Begins to receive, and serves what has arrived as soon as it is there.
  void join_chain(const TestVersion& version, const std::string& predecessor) {
    join_chain(version, receiver.wanted(version, predecessor));
  }
  void join_chain(const TestVersion& version, FetchRequest wanted) {
    source->offer({.key = version.key(),
                   .buckets = version.buckets(),
                   .data = *receiver.memory,
                   .leaves = version.leaves(),
                   .blocks = version.blocks(),
                   .complete = false,
                   .hold = receiver.memory});
    receiver.relay = [this, &version](const ArrivedBucket& arrived) {
      source->bucket_ready(version.key().version, arrived.bucket, arrived.digest, nullptr,
                           arrived.sums);
    };
    receiver.relay_leaves = [this, &version](const ArrivedLeaves& arrived) {
      source->leaves_ready(version.key().version, arrived);
    };
    fetch(std::move(wanted));
  }
  void fetch(FetchRequest wanted) {
    const auto begun = receiver.receive(std::move(wanted));
    EXPECT_TRUE(begun.has_value()) << begun.error().message();
  }

  std::unique_ptr<Transport> transport;
  std::unique_ptr<BucketSource> source;
  Receiver receiver;
};

// Of every kind that copies.
class RelayTest : public ::testing::TestWithParam<TransportTraits> {
 protected:
  [[nodiscard]] std::unique_ptr<Transport> make(
      std::chrono::milliseconds offer_wait = std::chrono::seconds(5)) {
    return make_transport(GetParam().kind, loop.post(),
                          {.run_dir = directory_.path().string(),
                           .name = "host" + std::to_string(++made_),
                           .secret = kTestSecret,
                           .offer_wait = offer_wait})
        .value();
  }
  OwnerLoop loop;

 private:
  PrivateDirectory directory_{"wsync_relay"};
  int made_ = 0;
};

}  // namespace wsync::transport

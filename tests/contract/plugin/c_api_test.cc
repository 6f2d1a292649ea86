// The C API of trainers: what it refuses, and that every wait has an end. With a fleet it is tested
// in tests/scenario/trainer_test.py.
#include <cstring>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <set>
#include <stdlib.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>
#include <wsync/trainer.h>

namespace {

using testing::HasSubstr;

class TrainerCApi : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "wsync-trainer-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override {
    wsync_trainer_destroy(trainer_);
    std::filesystem::remove_all(directory_);
  }
  wsync_code create(std::vector<std::string> settings, std::uint32_t rank = 0,
                    std::uint32_t world_size = 1) {
    settings.push_back("run_dir=" + directory_);
    settings.push_back("state_dir=" + directory_ + "/state");
    settings.emplace_back("log.level=error");
    std::vector<const char*> pointers;
    for (const std::string& setting : settings) pointers.push_back(setting.c_str());
    const wsync_trainer_options options{.config_file = nullptr,
                                        .settings = pointers.data(),
                                        .setting_count = pointers.size(),
                                        .rank = rank,
                                        .world_size = world_size};
    return wsync_trainer_create(&options, &trainer_);
  }
  wsync_trainer_tensor tensor() const {
    wsync_trainer_tensor tensor{};
    tensor.name = "model.w";
    tensor.dtype = "BF16";
    tensor.shape = shape_;
    tensor.shape_count = 2;
    tensor.data = memory_;
    return tensor;
  }
  std::string refused(const wsync_trainer_tensor& tensor) {
    EXPECT_EQ(wsync_trainer_add_tensor(trainer_, &tensor), WSYNC_INVALID_INPUT);
    return wsync_trainer_error();
  }

  std::string directory_;
  wsync_trainer* trainer_ = nullptr;
  std::uint64_t shape_[2] = {4, 64};
  std::byte memory_[4 * 64 * 2] = {};
};

std::set<int> open_sockets() {
  std::set<int> found;
  for (int fd = 0; fd < 1024; ++fd) {
    int type = 0;
    socklen_t size = sizeof type;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0) found.insert(fd);
  }
  return found;
}

// What `work` returns, in a child.
template <class Work>
int in_child(Work work) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(work());
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

std::uint16_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

TEST_F(TrainerCApi, AForkedChildHasNoneOfItsSocketsAndIsRefused) {
  const std::uint16_t port = free_port();
  std::set<int> ours = open_sockets();
  const std::string address = "tcp://127.0.0.1:" + std::to_string(port);
  ASSERT_EQ(create({"listen=" + address, "http.address=tcp://127.0.0.1:0"}), WSYNC_OK)
      << wsync_trainer_error();
  ASSERT_EQ(wsync_trainer_start(trainer_), WSYNC_OK) << wsync_trainer_error();
  // One that libzmq has accepted: it has said hello.
  const int peer = *ours.insert(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)).first;
  const sockaddr_in where = loopback(port);
  ASSERT_EQ(::connect(peer, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  char hello = 0;
  ASSERT_EQ(::read(peer, &hello, 1), 1);
  const auto foreign = [&] {
    std::set<int> found = open_sockets();
    for (const int own : ours) found.erase(own);
    return static_cast<int>(found.size());
  };
  EXPECT_GE(foreign(), 4) << "listeners with their duplicates, and a connection";
  EXPECT_EQ(in_child(foreign), 0) << "sockets of the library are open in the child";
  EXPECT_EQ(in_child([&] { return in_child(foreign); }), 0);
  EXPECT_EQ(
      in_child([&] {
        const int refused = wsync_trainer_check(trainer_);
        wsync_trainer_destroy(trainer_);
        return refused == WSYNC_INVALID_INPUT &&
                       std::string(wsync_trainer_error()).find("forked the current process") !=
                           std::string::npos
                   ? 0
                   : 1;
      }),
      0);
  EXPECT_EQ(in_child([&] { return ::write(peer, "", 1) == 1 ? 0 : 1; }), 0)
      << "the child has lost what is not the library's";
  EXPECT_EQ(wsync_trainer_check(trainer_), WSYNC_OK);
  ::close(peer);
}

TEST_F(TrainerCApi, ABadConfigurationNamesTheKeyAndTheNearest) {
  EXPECT_EQ(create({"deadlines.publsh=1s"}), WSYNC_INVALID_INPUT);
  EXPECT_EQ(trainer_, nullptr);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("did you mean deadlines.publish?"));
  EXPECT_EQ(create({"arenas=0"}), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("arenas"));
  EXPECT_EQ(create({}, 2, 2), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("rank 2 of 2"));
  EXPECT_EQ(create({}, 0, 1'000'000), WSYNC_INVALID_INPUT);
  wsync_trainer_options options{};
  options.config_file = "/nowhere/trainer.yaml";
  EXPECT_EQ(wsync_trainer_create(&options, &trainer_), WSYNC_NOT_FOUND);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("/nowhere/trainer.yaml"));
  EXPECT_EQ(wsync_trainer_create(nullptr, &trainer_), WSYNC_INVALID_INPUT);
  EXPECT_EQ(wsync_trainer_create(&options, nullptr), WSYNC_INVALID_INPUT);
}

TEST_F(TrainerCApi, BadTensorsAreRefusedByName) {
  ASSERT_EQ(create({}), WSYNC_OK) << wsync_trainer_error();
  auto bad = tensor();
  bad.dtype = "bf16";
  EXPECT_THAT(refused(bad), HasSubstr("tensor model.w: dtype bf16 is unknown"));
  bad = tensor();
  bad.name = nullptr;
  EXPECT_THAT(refused(bad), HasSubstr("needs a name"));
  bad = tensor();
  bad.shape = nullptr;
  EXPECT_THAT(refused(bad), HasSubstr("NULL"));
  bad = tensor();
  bad.shape_count = 9;
  EXPECT_THAT(refused(bad), HasSubstr("9 dimensions, at most 8"));
  const wsync_range ranges[2] = {{.dim = 1, .begin = 60, .length = 8},
                                 {.dim = 0, .begin = 0, .length = 2}};
  bad = tensor();
  bad.ranges = ranges;
  bad.range_count = 1;
  EXPECT_THAT(refused(bad), HasSubstr("range [60, +8) is outside of dimension 1"));
  bad.range_count = 2;
  EXPECT_THAT(refused(bad), HasSubstr("2 ranges, at most 1"));
  EXPECT_EQ(wsync_trainer_add_tensor(nullptr, &bad), WSYNC_INVALID_INPUT);
}

TEST_F(TrainerCApi, AVersionIsWrittenBetweenBeginAndEnd) {
  ASSERT_EQ(create({}), WSYNC_OK) << wsync_trainer_error();
  auto described = tensor();
  described.data = nullptr;
  ASSERT_EQ(wsync_trainer_add_tensor(trainer_, &described), WSYNC_OK) << wsync_trainer_error();
  wsync_draft draft = 7;
  EXPECT_EQ(wsync_trainer_begin(trainer_, 0, &draft), WSYNC_INVALID_INPUT);
  EXPECT_STREQ(wsync_trainer_error(), "the trainer has not been started");
  EXPECT_EQ(draft, 0U);
  ASSERT_EQ(wsync_trainer_start(trainer_), WSYNC_OK) << wsync_trainer_error();
  wsync_publish publish = 9;
  EXPECT_EQ(wsync_trainer_publish(trainer_, 0, &publish), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("tensor model.w: both data and read are NULL"));

  ASSERT_EQ(wsync_trainer_begin(trainer_, 0, &draft), WSYNC_OK) << wsync_trainer_error();
  wsync_draft second = 0;
  EXPECT_EQ(wsync_trainer_begin(trainer_, 0, &second), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(),
              HasSubstr("a version of this trainer is open (draft 2); end or abandon it first"));
  EXPECT_EQ(wsync_trainer_end(trainer_, draft, &publish), WSYNC_REFUSED);
  EXPECT_STREQ(wsync_trainer_error(), "1 of 1 tensors were not put completely: model.w");
  EXPECT_EQ(publish, 0U);
  const std::vector<float> masters(4 * 64, 1.5F);
  wsync_trainer_part part{
      .name = "model.w", .dtype = "F32", .shape = shape_, .shape_count = 2, .data = masters.data()};
  EXPECT_EQ(wsync_trainer_put(trainer_, draft + 1, &part), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("tensor model.w: there has been no version"));
  part.publish_dtype = "F16";
  EXPECT_EQ(wsync_trainer_put(trainer_, draft, &part), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("it is published as BF16, as it was described"));
  part.publish_dtype = nullptr;
  part.compute_scales = 1;
  EXPECT_EQ(wsync_trainer_put(trainer_, draft, &part), WSYNC_INVALID_INPUT);
  part.compute_scales = 0;
  EXPECT_EQ(wsync_trainer_put(trainer_, draft, nullptr), WSYNC_INVALID_INPUT);
  ASSERT_EQ(wsync_trainer_put(trainer_, draft, &part), WSYNC_OK) << wsync_trainer_error();
  EXPECT_EQ(wsync_trainer_put(trainer_, draft, &part), WSYNC_REFUSED);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("tensor model.w: [0, 4) of dimension 0 was put"));
  ASSERT_EQ(wsync_trainer_end(trainer_, draft, &publish), WSYNC_OK) << wsync_trainer_error();
  wsync_publish_status status{};
  ASSERT_EQ(wsync_trainer_poll(trainer_, publish, &status), WSYNC_OK);
  EXPECT_EQ(status.state, WSYNC_PUBLISH_SNAPSHOTTED) << status.reason;
  EXPECT_EQ(wsync_trainer_put(trainer_, draft, &part), WSYNC_REFUSED);
  EXPECT_STREQ(wsync_trainer_error(), "tensor model.w: the version has been ended or abandoned");
  EXPECT_EQ(wsync_trainer_end(trainer_, draft, &publish), WSYNC_REFUSED);

  // One that is abandoned gives its memory back, however often.
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(wsync_trainer_begin(trainer_, 0, &draft), WSYNC_OK) << wsync_trainer_error();
    void* data = nullptr;
    std::uint64_t bytes = 0;
    ASSERT_EQ(wsync_trainer_map(trainer_, draft, "model.w", &data, &bytes), WSYNC_OK);
    EXPECT_EQ(bytes, sizeof memory_);
    std::memset(data, i, bytes);
    ASSERT_EQ(wsync_trainer_abandon(trainer_, draft), WSYNC_OK);
    EXPECT_EQ(wsync_trainer_abandon(trainer_, draft), WSYNC_REFUSED);
  }
  EXPECT_EQ(wsync_trainer_map(trainer_, draft, "model.w", nullptr, nullptr), WSYNC_INVALID_INPUT);
}

TEST_F(TrainerCApi, SeveralPartsArePutAtOnce) {
  ASSERT_EQ(create({}), WSYNC_OK) << wsync_trainer_error();
  ASSERT_EQ(wsync_trainer_start(trainer_), WSYNC_OK) << wsync_trainer_error();
  const std::vector<float> masters(4 * 64, 1.5F);
  wsync_trainer_part parts[2] = {{.name = "model.w",
                                  .dtype = "F32",
                                  .publish_dtype = "BF16",
                                  .shape = shape_,
                                  .shape_count = 2,
                                  .data = masters.data()}};
  parts[1] = parts[0];
  parts[1].name = "model.v";
  wsync_publish publish = 0;
  // The first version, which describes the tensors, and a later one.
  for (int version = 0; version < 2; ++version) {
    wsync_draft draft = 0;
    std::size_t failed = 9;
    ASSERT_EQ(wsync_trainer_begin(trainer_, 0, &draft), WSYNC_OK) << wsync_trainer_error();
    EXPECT_EQ(wsync_trainer_put_all(trainer_, draft, nullptr, 2, &failed), WSYNC_INVALID_INPUT);
    EXPECT_EQ(failed, 2U);
    EXPECT_EQ(wsync_trainer_put_all(trainer_, draft + 1, parts, 2, &failed), WSYNC_INVALID_INPUT);
    EXPECT_EQ(failed, 2U);
    if (version == 1) {
      parts[1].publish_dtype = "F16";
      EXPECT_EQ(wsync_trainer_put_all(trainer_, draft, parts, 2, &failed), WSYNC_INVALID_INPUT);
      EXPECT_THAT(wsync_trainer_error(), HasSubstr("tensor model.v: it is published as BF16"));
      EXPECT_EQ(failed, 1U);
      parts[1].publish_dtype = "BF16";
    }
    ASSERT_EQ(wsync_trainer_put_all(trainer_, draft, parts, 2, nullptr), WSYNC_OK)
        << wsync_trainer_error();
    ASSERT_EQ(wsync_trainer_end(trainer_, draft, &publish), WSYNC_OK) << wsync_trainer_error();
    EXPECT_EQ(wsync_trainer_put_all(trainer_, draft, parts, 2, nullptr), WSYNC_REFUSED);
  }
}

TEST_F(TrainerCApi, TheFirstVersionDescribesTheTensors) {
  ASSERT_EQ(create({}), WSYNC_OK) << wsync_trainer_error();
  ASSERT_EQ(wsync_trainer_start(trainer_), WSYNC_OK) << wsync_trainer_error();
  const std::uint64_t shape[2] = {200, 130};
  const std::vector<float> masters(200 * 130, 0.25F);
  wsync_trainer_part part{.name = "model.w",
                          .dtype = "F32",
                          .publish_dtype = "F8_E4M3",
                          .shape = shape,
                          .shape_count = 2,
                          .data = masters.data(),
                          .compute_scales = 1};
  wsync_draft draft = 0;
  void* data = nullptr;
  ASSERT_EQ(wsync_trainer_begin(trainer_, 0, &draft), WSYNC_OK) << wsync_trainer_error();
  EXPECT_EQ(wsync_trainer_map(trainer_, draft, "model.w", &data, nullptr), WSYNC_NOT_FOUND);
  ASSERT_EQ(wsync_trainer_put(trainer_, draft, &part), WSYNC_OK) << wsync_trainer_error();
  part.publish_dtype = "BF16";
  part.compute_scales = 0;
  EXPECT_EQ(wsync_trainer_put(trainer_, draft, &part), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("it was put as model.w F8_E4M3 [200, 130] first"));
  wsync_publish publish = 0;
  ASSERT_EQ(wsync_trainer_end(trainer_, draft, &publish), WSYNC_OK) << wsync_trainer_error();

  ASSERT_EQ(wsync_trainer_begin(trainer_, 0, &draft), WSYNC_OK) << wsync_trainer_error();
  std::uint64_t bytes = 0;
  ASSERT_EQ(wsync_trainer_map(trainer_, draft, "model.w", &data, &bytes), WSYNC_OK);
  EXPECT_EQ(bytes, 200U * 130U);
  ASSERT_EQ(wsync_trainer_map(trainer_, draft, "model.w_scale_inv", &data, &bytes), WSYNC_OK)
      << wsync_trainer_error();
  EXPECT_EQ(bytes, 2U * 2U * sizeof(float));
}

TEST_F(TrainerCApi, EveryWaitEnds) {
  ASSERT_EQ(create({"deadlines.publish=200ms"}), WSYNC_OK) << wsync_trainer_error();
  const auto good = tensor();
  ASSERT_EQ(wsync_trainer_add_tensor(trainer_, &good), WSYNC_OK);
  wsync_publish publish = 9;
  EXPECT_EQ(wsync_trainer_publish(trainer_, 0, &publish), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("has not been started"));
  ASSERT_EQ(wsync_trainer_start(trainer_), WSYNC_OK) << wsync_trainer_error();
  EXPECT_EQ(wsync_trainer_start(trainer_), WSYNC_INVALID_INPUT);
  // No sidecar: the snapshot is taken and kept, and the status says what it waits for.
  EXPECT_EQ(wsync_trainer_publish(trainer_, 0, &publish), WSYNC_OK) << wsync_trainer_error();
  wsync_publish_status status;
  ASSERT_EQ(wsync_trainer_poll(trainer_, publish, &status), WSYNC_OK);
  EXPECT_EQ(status.state, WSYNC_PUBLISH_SNAPSHOTTED);
  EXPECT_EQ(status.version.epoch, 0U);
  EXPECT_THAT(status.reason, HasSubstr("0 of at least 1 sidecars"));
  EXPECT_EQ(wsync_trainer_publish_async(trainer_, 5, &publish), WSYNC_OK);
  EXPECT_EQ(wsync_trainer_wait(trainer_, publish, WSYNC_PUBLISH_COMMITTED, 0, &status),
            WSYNC_DEADLINE);
  EXPECT_LE(status.state, WSYNC_PUBLISH_SNAPSHOTTED);
  EXPECT_EQ(status.step, 5U);
  wsync_publish again = 0;
  EXPECT_EQ(wsync_trainer_publish_async(trainer_, 5, &again), WSYNC_INVALID_INPUT);
  constexpr std::uint64_t kTooHigh = std::uint64_t{1} << 62U;
  EXPECT_EQ(wsync_trainer_publish_async(trainer_, kTooHigh, &again), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(),
              HasSubstr("above the limit of 4611686018427387903, which leaves room"));
  wsync_draft draft = 0;
  EXPECT_EQ(wsync_trainer_begin(trainer_, kTooHigh, &draft), WSYNC_INVALID_INPUT);
  EXPECT_EQ(wsync_trainer_wait(trainer_, publish, WSYNC_PUBLISH_FAILED, 0, &status),
            WSYNC_INVALID_INPUT);
  EXPECT_EQ(wsync_trainer_poll(trainer_, 77, &status), WSYNC_NOT_FOUND);
  wsync_problem problem;
  EXPECT_EQ(wsync_trainer_problem(trainer_, 77, &problem), WSYNC_NOT_FOUND);
  EXPECT_EQ(wsync_trainer_problem(trainer_, publish, nullptr), WSYNC_INVALID_INPUT);
  ASSERT_EQ(wsync_trainer_problem(trainer_, publish, &problem), WSYNC_OK);
  EXPECT_STREQ(problem.tensor, "") << "no layout was refused";
  EXPECT_EQ(wsync_trainer_check(trainer_), WSYNC_OK);
  wsync_rollback back;
  EXPECT_NE(wsync_trainer_roll_back(trainer_, {}, 20'000, &back), WSYNC_OK);
  EXPECT_NE(wsync_trainer_roll_back(trainer_, {}, -1, &back), WSYNC_OK);
  EXPECT_EQ(wsync_trainer_roll_back(trainer_, {}, -2, &back), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("timeout_ms is -2"));
  EXPECT_EQ(wsync_trainer_wait(trainer_, publish, WSYNC_PUBLISH_COMMITTED, -2, &status),
            WSYNC_INVALID_INPUT);
  // No limit of the caller's: the call has one, and the snapshot is still kept.
  EXPECT_EQ(wsync_trainer_wait(trainer_, publish, WSYNC_PUBLISH_COMMITTED, -1, &status),
            WSYNC_DEADLINE);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("0 of at least 1 sidecars"));
  EXPECT_EQ(status.state, WSYNC_PUBLISH_SNAPSHOTTED);
}

TEST_F(TrainerCApi, ASecondTrainerIsToldWhoHasTheAddress) {
  ASSERT_EQ(create({}), WSYNC_OK) << wsync_trainer_error();
  ASSERT_EQ(wsync_trainer_start(trainer_), WSYNC_OK) << wsync_trainer_error();
  wsync_trainer* first = trainer_;
  ASSERT_EQ(create({}), WSYNC_OK) << wsync_trainer_error();
  EXPECT_EQ(wsync_trainer_start(trainer_), WSYNC_BUSY);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("control"));
  wsync_trainer_destroy(first);
}

TEST_F(TrainerCApi, SeveralRanksNeedAStepAndARankWithoutRank0GivesUp) {
  ASSERT_EQ(create({"deadlines.gather=200ms"}, 1, 2), WSYNC_OK) << wsync_trainer_error();
  const auto good = tensor();
  ASSERT_EQ(wsync_trainer_add_tensor(trainer_, &good), WSYNC_OK);
  ASSERT_EQ(wsync_trainer_start(trainer_), WSYNC_OK) << wsync_trainer_error();
  wsync_publish publish = 0;
  EXPECT_EQ(wsync_trainer_publish(trainer_, 0, &publish), WSYNC_INVALID_INPUT);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("with 2 ranks a publish needs its step"));
  // Its own snapshot is there at once; that nobody takes it is the end of the publish.
  EXPECT_EQ(wsync_trainer_publish(trainer_, 1, &publish), WSYNC_OK) << wsync_trainer_error();
  wsync_publish_status status;
  EXPECT_EQ(wsync_trainer_wait(trainer_, publish, WSYNC_PUBLISH_COMMITTED, 20'000, &status),
            WSYNC_DEADLINE);
  EXPECT_EQ(status.state, WSYNC_PUBLISH_FAILED);
  EXPECT_THAT(wsync_trainer_error(), HasSubstr("trainer-ranks.sock"));
}

TEST_F(TrainerCApi, DestroyEndsWhatHasNotEnded) {
  ASSERT_EQ(create({}), WSYNC_OK) << wsync_trainer_error();
  const auto good = tensor();
  ASSERT_EQ(wsync_trainer_add_tensor(trainer_, &good), WSYNC_OK);
  ASSERT_EQ(wsync_trainer_start(trainer_), WSYNC_OK) << wsync_trainer_error();
  wsync_publish publish = 0;
  EXPECT_EQ(wsync_trainer_publish_async(trainer_, 0, &publish), WSYNC_OK);
  wsync_trainer_destroy(trainer_);
  trainer_ = nullptr;
  wsync_trainer_destroy(nullptr);
  wsync_trainer_clear_tensors(nullptr);
}

}  // namespace

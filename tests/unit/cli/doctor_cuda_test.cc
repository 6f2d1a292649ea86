// What `wsync doctor` makes of what the driver and NCCL say; the facts are written here.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <unistd.h>

#include "deploy/cli/doctor_checks.h"

namespace wsync::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

device::GpuFacts one_gpu(std::uint32_t number) {
  return {.gpu = number,
          .name = "NVIDIA H200",
          .uuid = "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(number),
          .pci = "0000:17:00.0",
          .compute_major = 9,
          .compute_minor = 0,
          .total_bytes = 141ULL << 30U,
          .numa_node = 1,
          .pcie_now = "32.0 GT/s PCIe x16",
          .pcie_max = "32.0 GT/s PCIe x16",
          .peers = {},
          .reads_registered_read_only = true,
          .shares_memory = true};
}

device::CudaFacts two_gpus() {
  device::CudaFacts facts{.library = "/opt/libwsync_cuda.so",
                          .built_with = 13000,
                          .driver_cuda = 13010,
                          .driver_release = "590.44.01",
                          .gpus = {one_gpu(0), one_gpu(1)}};
  facts.gpus[0].peers = {1};
  facts.gpus[1].peers = {0};
  return facts;
}

const collective::NcclFacts kNccl{
    .library = "/usr/lib/libnccl.so.2", .version = 22707, .built_with = 22704, .interface = "lo"};
const CudaWanted kWanted{.wanted = true, .gpus = {}};
const Result<device::CudaFacts> kNoCuda =
    fail(ErrorCode::kRefused, "device kind cuda needs libwsync_cuda.so, which was not found; x");
const Result<collective::NcclFacts> kNoNccl = fail(ErrorCode::kRefused, "no libnccl.so.2");

const Check& named(const std::vector<Check>& checks, const std::string& name) {
  const auto at = std::ranges::find(checks, name, &Check::name);
  EXPECT_NE(at, checks.end()) << name;
  return *at;
}

std::ptrdiff_t failures(const std::vector<Check>& checks) {
  return std::ranges::count(checks, CheckStatus::kFail, &Check::status);
}

TEST(DoctorCuda, OneQuietLineWhereNobodyWantsIt) {
  const auto checks = cuda_checks(kNoCuda, kNoNccl, {});
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].status, CheckStatus::kOk);
  EXPECT_EQ(checks[0].found,
            "GPUs cannot be used (device kind cuda needs libwsync_cuda.so, which was not found)");
  EXPECT_EQ(checks[0].advice, "");
}

TEST(DoctorCuda, MissingBackendFailsWhereItIsWanted) {
  const auto checks = cuda_checks(kNoCuda, kNoNccl, kWanted);
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].status, CheckStatus::kFail);
  EXPECT_EQ(checks[0].found, kNoCuda.error().message());
  EXPECT_THAT(checks[0].advice, HasSubstr("devices.kind"));
}

TEST(DoctorCuda, EachGpuIsALineAndFields) {
  const auto checks = cuda_checks(two_gpus(), kNccl, kWanted);
  ASSERT_EQ(checks.size(), 5U);
  EXPECT_EQ(failures(checks), 0);
  EXPECT_EQ(named(checks, "cuda").found,
            "2 GPUs, driver 590.44.01 for CUDA 13.1, backend built with CUDA 13.0: "
            "/opt/libwsync_cuda.so");
  const Check& gpu = named(checks, "gpu 1");
  EXPECT_EQ(gpu.found,
            "NVIDIA H200, GPU-00000000-0000-0000-0000-000000000001, 0000:17:00.0, 141.0 GiB, "
            "compute 9.0, NUMA node 1, 32.0 GT/s PCIe x16, peers: 0, pins read-only memory: yes");
  EXPECT_EQ(gpu.facts.at("uuid"), "GPU-00000000-0000-0000-0000-000000000001");
  EXPECT_EQ(gpu.facts.at("total_bytes"), 141ULL << 30U);
  EXPECT_EQ(gpu.facts.at("numa_node"), 1);
  EXPECT_EQ(gpu.facts.at("peers"), nlohmann::json::array({0}));
  EXPECT_EQ(named(checks, "nccl").found,
            "2.27.7, backend built with 2.27.4: /usr/lib/libnccl.so.2; ranks meet on interface lo");
}

TEST(DoctorCuda, WhatTheSystemDoesNotSayIsNotGuessed) {
  device::CudaFacts facts = two_gpus();
  facts.driver_release = "";
  facts.gpus[0].numa_node.reset();
  facts.gpus[0].pcie_now = "";
  facts.gpus[0].pcie_max = "";
  const auto checks = cuda_checks(facts, kNccl, kWanted);
  EXPECT_EQ(failures(checks), 0);
  const Check& gpu = named(checks, "gpu 0");
  EXPECT_EQ(gpu.status, CheckStatus::kOk);
  EXPECT_THAT(gpu.found, HasSubstr("NUMA node not reported, PCIe link not reported, peers: 1"));
  EXPECT_TRUE(gpu.facts.at("numa_node").is_null());
  EXPECT_THAT(named(checks, "cuda").found, HasSubstr("driver of unknown release for CUDA 13.1"));
}

TEST(DoctorCuda, AGpuForWhichATrainersMemoryCannotBePinnedIsAWarning) {
  device::CudaFacts facts = two_gpus();
  facts.gpus[0].reads_registered_read_only = false;
  const auto checks = cuda_checks(facts, kNccl, kWanted);
  EXPECT_EQ(failures(checks), 0);
  const Check& gpu = named(checks, "gpu 0");
  EXPECT_EQ(gpu.status, CheckStatus::kWarn);
  EXPECT_THAT(gpu.found, HasSubstr("pins read-only memory: no"));
  EXPECT_THAT(gpu.advice, HasSubstr("pinned buffers"));
}

TEST(DoctorCuda, ASlowLinkIsAWarningThatSaysWhatItCanDo) {
  device::CudaFacts facts = two_gpus();
  facts.gpus[1].pcie_now = "32.0 GT/s PCIe x8";
  const auto checks = cuda_checks(facts, kNccl, kWanted);
  EXPECT_EQ(failures(checks), 0);
  EXPECT_EQ(named(checks, "gpu 0").status, CheckStatus::kOk);
  EXPECT_EQ(named(checks, "gpu 1").status, CheckStatus::kWarn);
  EXPECT_THAT(named(checks, "gpu 1").advice, HasSubstr("32.0 GT/s PCIe x16"));
}

TEST(DoctorCuda, NoGpuFailsWhereItIsWanted) {
  device::CudaFacts facts = two_gpus();
  facts.gpus.clear();
  EXPECT_EQ(named(cuda_checks(facts, kNccl, kWanted), "cuda").status, CheckStatus::kFail);
  EXPECT_EQ(failures(cuda_checks(facts, kNccl, {})), 0);
  EXPECT_EQ(failures(cuda_checks(facts, kNccl, {.wanted = true, .gpus = {0}})), 1) << "said once";
}

TEST(DoctorCuda, GpusOfTheConfigMustBeThere) {
  CudaWanted third{.wanted = true, .gpus = {1, 2, 2}, .named = true};
  auto checks = cuda_checks(two_gpus(), kNccl, third);
  EXPECT_EQ(failures(checks), 1);
  EXPECT_EQ(named(checks, "gpu 2").found,
            "devices.gpus names GPU 2; this process sees 2 (" + device::visible_gpus_text() + ")");
  third = {.wanted = true, .gpus = {0, 1, 2}};
  checks = cuda_checks(two_gpus(), kNccl, third);
  EXPECT_THAT(named(checks, "gpu 2").found,
              HasSubstr("devices.count: 3 needs GPU 2; this process sees 2"));
  EXPECT_THAT(named(checks, "gpu 2").advice, HasSubstr("set devices.count"));
}

TEST(DoctorCuda, AnOldGpuFailsWhereItIsChosen) {
  device::CudaFacts facts = two_gpus();
  facts.gpus[0].compute_major = 7;
  EXPECT_EQ(failures(cuda_checks(facts, kNccl, kWanted)), 1);
  const CudaWanted second{.wanted = true, .gpus = {1}};
  const auto checks = cuda_checks(facts, kNccl, second);
  EXPECT_EQ(failures(checks), 0);
  EXPECT_EQ(named(checks, "gpu 0").status, CheckStatus::kWarn);
}

TEST(DoctorCuda, AGpuThatCannotShareMemoryFailsWhereItIsChosen) {
  device::CudaFacts facts = two_gpus();
  facts.gpus[0].shares_memory = false;
  auto checks = cuda_checks(facts, kNccl, kWanted);
  EXPECT_EQ(failures(checks), 1);
  EXPECT_THAT(named(checks, "gpu 0").advice, HasSubstr("cannot share memory"));
  EXPECT_EQ(named(checks, "gpu 0").facts.at("shares_memory"), false);
  EXPECT_EQ(named(checks, "gpu 1").facts.at("shares_memory"), true);
  checks = cuda_checks(facts, kNccl, {.wanted = true, .gpus = {1}});
  EXPECT_EQ(failures(checks), 0);
  EXPECT_EQ(named(checks, "gpu 0").status, CheckStatus::kWarn);
}

TEST(DoctorCuda, NoNcclIsAWarningWhereGpusAreWanted) {
  EXPECT_EQ(named(cuda_checks(two_gpus(), kNoNccl, kWanted), "nccl").status, CheckStatus::kWarn);
  EXPECT_EQ(named(cuda_checks(two_gpus(), kNoNccl, {}), "nccl").status, CheckStatus::kOk);
  const CudaWanted one{.wanted = true, .gpus = {0}};
  EXPECT_EQ(named(cuda_checks(two_gpus(), kNoNccl, one), "nccl").status, CheckStatus::kOk);
}

TEST(DoctorCuda, NoNcclFailsWhereTheConfigNamesIt) {
  const CudaWanted nccl{.wanted = true, .gpus = {0, 1}, .collective = Collective::kNccl};
  EXPECT_EQ(failures(cuda_checks(two_gpus(), kNccl, nccl)), 0);
  const CudaWanted twice{.wanted = true, .gpus = {0, 0}, .collective = Collective::kNccl};
  EXPECT_EQ(named(cuda_checks(two_gpus(), kNccl, twice), "nccl").status, CheckStatus::kFail);
  EXPECT_THAT(named(cuda_checks(two_gpus(), kNccl, twice), "nccl").advice,
              HasSubstr("NCCL_MULTI_RANK_GPU_ENABLE=1"));
  auto sharing = kNccl;
  sharing.ranks_share_gpus = true;
  EXPECT_EQ(failures(cuda_checks(two_gpus(), sharing, twice)), 0);
  const auto checks = cuda_checks(two_gpus(), kNoNccl, nccl);
  EXPECT_EQ(named(checks, "nccl").status, CheckStatus::kFail);
  EXPECT_THAT(named(checks, "nccl").advice, HasSubstr("set devices.collective"));
}

TEST(DoctorCuda, PinnedMemorysLimitIsAFact) {
  const CudaWanted little{.wanted = true, .gpus = {}, .lock_limit = 8ULL << 20U};
  const auto checks = cuda_checks(two_gpus(), kNccl, little);
  EXPECT_EQ(named(checks, "pinned memory").status, CheckStatus::kOk);
  EXPECT_THAT(named(checks, "pinned memory").found, HasSubstr("RLIMIT_MEMLOCK: 8.0 MiB;"));
  EXPECT_EQ(named(checks, "pinned memory").facts.at("lock_limit_bytes"), 8ULL << 20U);
  EXPECT_TRUE(named(cuda_checks(two_gpus(), kNccl, kWanted), "pinned memory")
                  .facts.at("lock_limit_bytes")
                  .is_null());
}

TEST(DoctorMps, IsAWarningOnlyIfTheEnvironmentNamesADaemonThatIsNotThere) {
  const Check none = mps_check({.directory = "/tmp/nvidia-mps", .reason = {}});
  EXPECT_EQ(none.status, CheckStatus::kOk);
  EXPECT_THAT(none.found, HasSubstr("no MPS control daemon at /tmp/nvidia-mps"));
  EXPECT_EQ(none.facts.at("listens"), false);
  const Check named = mps_check({.directory = "/run/mps", .is_named = true, .reason = {}});
  EXPECT_EQ(named.status, CheckStatus::kWarn);
  EXPECT_THAT(named.advice, HasSubstr("CUDA_MPS_PIPE_DIRECTORY"));
  const Check there = mps_check({.state = device::MpsDaemon::State::kListens,
                                 .directory = "/run/mps",
                                 .is_named = true,
                                 .reason = {}});
  EXPECT_EQ(there.status, CheckStatus::kOk);
  EXPECT_EQ(there.advice, "");
  EXPECT_EQ(there.facts.at("listens"), true);
}

class DoctorHugePages : public testing::Test {
 protected:
  void SetUp() override {
    root_ =
        std::filesystem::path(testing::TempDir()) / ("doctor-huge-" + std::to_string(::getpid()));
    std::filesystem::create_directories(root_ / "sys/kernel/mm/transparent_hugepage");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void system(const std::string& setting, int pages) const {
    std::ofstream(root_ / "sys/kernel/mm/transparent_hugepage/shmem_enabled") << setting;
    const auto pool = root_ / "sys/kernel/mm/hugepages/hugepages-2048kB";
    std::filesystem::create_directories(pool);
    for (const char* name : {"nr_hugepages", "free_hugepages"}) std::ofstream(pool / name) << pages;
    for (const char* name : {"resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages"})
      std::ofstream(pool / name) << 0;
  }
  std::filesystem::path root_;
};

TEST_F(DoctorHugePages, ShowsTheSettingAndThePool) {
  Check check = check_huge_pages(HugePages::kAdvise, root_);
  EXPECT_EQ(check.status, CheckStatus::kOk);
  EXPECT_THAT(check.found, HasSubstr("shmem_enabled: unknown; no pool"));
  system("always [advise] never", 5);
  check = check_huge_pages(HugePages::kAdvise, root_);
  EXPECT_EQ(check.found,
            "memory.huge_pages: advise; shmem_enabled: advise; the pool has 5 pages of 2 MiB, 5 of "
            "them available");
  EXPECT_EQ(check.facts.at("pool_available"), 5);
  system("always advise [never]", 0);
  check = check_huge_pages(HugePages::kAdvise, root_);
  EXPECT_THAT(check.found, HasSubstr("Arenas are in pages of 4 KiB; with `advise` in"));
  EXPECT_EQ(check.advice, "");
  EXPECT_THAT(check_huge_pages(HugePages::kOff, root_).found, Not(HasSubstr("4 KiB")));
}

TEST_F(DoctorHugePages, AnEmptyPoolIsAWarningWhereItIsWanted) {
  system("always advise [never]", 0);
  const Check empty = check_huge_pages(HugePages::kExplicit, root_);
  EXPECT_EQ(empty.status, CheckStatus::kWarn);
  EXPECT_THAT(empty.advice, HasSubstr("vm.nr_hugepages"));
  system("always advise [never]", 7);
  EXPECT_EQ(check_huge_pages(HugePages::kExplicit, root_).status, CheckStatus::kOk);
}

}  // namespace
}  // namespace wsync::cli

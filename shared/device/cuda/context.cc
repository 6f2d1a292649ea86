#include "shared/device/cuda/context.h"

#include <array>
#include <map>
#include <mutex>

#include "shared/base/format.h"
#include "shared/device/cuda/batch_tables.h"
#include "shared/device/cuda/bounce_ring.h"
#include "shared/device/cuda/kernel_images.h"
#include "shared/device/cuda/kernels.h"
#include "shared/device/cuda/mapped_memory.h"
#include "shared/device/cuda/patch_kernel.h"
#include "shared/device/cuda_library.h"

namespace wsync::device::cuda {
namespace {

constexpr int kNameBytes = 256;

// The open GPUs of this process. The driver's table is part of the key, because tests use several.
struct OpenGpus {
  std::mutex mutex;
  std::map<std::pair<const Driver*, std::uint32_t>, std::weak_ptr<const Gpu>> all;
};
OpenGpus& open_gpus() {
  static OpenGpus gpus;
  return gpus;
}

// Enables direct access from GPU `from` to the memory of GPU `to`, and returns whether it is
// enabled. If this is not possible (no such link, too many peers), the driver copies through host
// memory. That is slower but correct, and `wsync doctor` shows it.
bool enable_peer(const Context& from, const Context& to) {
  const Driver& cuda = from.cuda();
  int can = 0;
  if (cuda.cuDeviceCanAccessPeer(&can, from.device(), to.device()) != CUDA_SUCCESS || can == 0)
    return false;
  const ContextGuard guard(from);
  const CUresult code = cuda.cuCtxEnablePeerAccess(to.handle(), 0);
  // A framework that shares the context may have enabled it.
  return code == CUDA_SUCCESS || code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

}  // namespace

Result<std::shared_ptr<const Context>> Context::retain(const Driver& cuda, CUdevice device) {
  CUcontext handle = nullptr;
  WSYNC_TRY(check(cuda, cuda.cuDevicePrimaryCtxRetain(&handle, device),
                  "the GPU's primary context cannot be retained (is the GPU in exclusive or "
                  "prohibited compute mode, or out of memory?)"));
  return std::shared_ptr<const Context>(new Context(cuda, device, handle));
}

Context::~Context() {
  if (release_returns(true))
    released(cuda_, cuda_.cuDevicePrimaryCtxRelease(device_), "cuDevicePrimaryCtxRelease");
}

void Context::abandon(std::string why) const {
  std::vector<std::weak_ptr<const Context>> peers;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_.exchange(true)) return;
    waits_without_end_ = true;
    why_abandoned_ = std::move(why);
    peers = peers_;
  }
  for (const auto& one : peers)
    if (const auto peer = one.lock()) peer->waits_without_end_ = true;
}

bool Context::release_returns(bool waits_for_kernels) const noexcept {
  return waits_for_kernels ? !waits_without_end_.load() : !abandoned_.load();
}

void Context::make_peers(const std::shared_ptr<const Context>& one,
                         const std::shared_ptr<const Context>& other) {
  for (const auto& [from, to] : {std::pair(&one, &other), std::pair(&other, &one)}) {
    {
      const std::lock_guard lock((*from)->mutex_);
      (*from)->peers_.push_back(*to);
    }
    if ((*to)->abandoned()) (*from)->waits_without_end_ = true;
  }
}

std::string Context::why_abandoned() const {
  const std::lock_guard lock(mutex_);
  return why_abandoned_;
}

ContextGuard::~ContextGuard() {
  if (code_ != CUDA_SUCCESS) return;
  CUcontext was = nullptr;
  released(context_.cuda(), context_.cuda().cuCtxPopCurrent(&was), "cuCtxPopCurrent");
}

Result<OwnedMemory> allocate_memory(const std::shared_ptr<const Context>& context,
                                    std::uint64_t bytes) {
  const ContextGuard guard(*context);
  WSYNC_TRY(guard.entered());
  CUdeviceptr address = 0;
  WSYNC_TRY(check(context->cuda(), context->cuda().cuMemAlloc(&address, bytes),
                  fmt::format("{} bytes of GPU memory", bytes)));
  return OwnedMemory(context, address);
}

Result<OwnedPinned> allocate_pinned(const std::shared_ptr<const Context>& context,
                                    std::uint64_t bytes) {
  const ContextGuard guard(*context);
  WSYNC_TRY(guard.entered());
  void* address = nullptr;
  WSYNC_TRY(check(context->cuda(), context->cuda().cuMemAllocHost(&address, bytes),
                  fmt::format("{} bytes of pinned host memory", bytes)));
  return OwnedPinned(context, address);
}

Result<OwnedModule> load_kernels(const std::shared_ptr<const Context>& context) {
  const Driver& cuda = context->cuda();
  const CUdevice device = context->device();
  const ComputeCapability gpu{.major = static_cast<std::uint32_t>(WSYNC_TRY(attribute(
                                  cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))),
                              .minor = static_cast<std::uint32_t>(WSYNC_TRY(attribute(
                                  cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)))};
  const KernelImage* image = choose_kernel_image(kernel_images(), gpu);
  if (image == nullptr)
    return fail(
        ErrorCode::kRefused,
        fmt::format("its compute capability is {}, but the kernels are built for {} and "
                    "newer",
                    capability_text(gpu), capability_text(kernel_images().front().capability)));
  const ContextGuard guard(*context);
  WSYNC_TRY(guard.entered());
  CUmodule module = nullptr;
  const CUresult code = cuda.cuModuleLoadData(&module, image->bytes.data());
  if (code == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
    return fail(ErrorCode::kRefused,
                fmt::format("its compute capability is {}, for which the driver has to compile PTX "
                            "of CUDA {}, and the driver supports CUDA {}: install a newer one",
                            capability_text(gpu), cuda_version_text(CUDA_VERSION),
                            cuda_version_text(driver_version(cuda).value_or(0))));
  WSYNC_TRY(check(cuda, code,
                  fmt::format("the {} for compute capability {} cannot be loaded on a GPU of {}",
                              image->is_ptx ? "PTX" : "machine code",
                              capability_text(image->capability), capability_text(gpu))));
  return OwnedModule(context, module);
}

std::string uuid_text(const CUuuid& uuid, const std::string& name) {
  std::string text = name.find(" MIG ") == std::string::npos ? "GPU-" : "MIG-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

Result<std::uint32_t> gpu_count(const Driver& cuda) {
  int count = 0;
  if (!cuda.has_gpus) return 0;
  WSYNC_TRY(check(cuda, cuda.cuDeviceGetCount(&count), "the number of GPUs"));
  return static_cast<std::uint32_t>(count);
}

Result<int> attribute(const Driver& cuda, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  WSYNC_TRY(check(cuda, cuda.cuDeviceGetAttribute(&value, which, device),
                  fmt::format("attribute {} of a GPU", static_cast<int>(which))));
  return value;
}

Result<std::string> model_name(const Driver& cuda, CUdevice device) {
  std::array<char, kNameBytes> text{};
  WSYNC_TRY(
      check(cuda, cuda.cuDeviceGetName(text.data(), kNameBytes - 1, device), "the name of a GPU"));
  return std::string(text.data());
}

Result<std::string> read_uuid(const Driver& cuda, CUdevice device) {
  const auto name = WSYNC_TRY(model_name(cuda, device));
  CUuuid uuid{};
  WSYNC_TRY(check(cuda, cuda.cuDeviceGetUuid_v2(&uuid, device), "the UUID of a GPU"));
  return uuid_text(uuid, name);
}

Result<std::shared_ptr<const Gpu>> Gpu::open(const Driver& cuda, std::uint32_t number) {
  auto& open = open_gpus();
  const std::lock_guard lock(open.mutex);
  auto& slot = open.all[{&cuda, number}];
  if (auto there = slot.lock()) {
    WSYNC_TRY(there->usable());
    return there;
  }
  auto made = WSYNC_TRY(make(cuda, number));
  const std::shared_ptr<const Gpu> gpu = std::move(made);
  for (const auto& [key, other] : open.all) {
    const auto peer = other.lock();
    if (key.first != &cuda || peer == nullptr) continue;
    Context::make_peers(gpu->context_, peer->context_);
    if (enable_peer(*gpu->context_, *peer->context_)) peer->add_peer(gpu);
    if (enable_peer(*peer->context_, *gpu->context_)) gpu->add_peer(peer);
  }
  slot = gpu;
  return gpu;
}

Gpu::Gpu(std::shared_ptr<const Context> context, std::uint32_t number)
    : context_(std::move(context)),
      number_(number),
      batch_tables_(std::make_shared<BatchTablePool>()) {}

std::shared_ptr<const Gpu> Gpu::find(const Driver& cuda, std::uint32_t number) {
  auto& open = open_gpus();
  const std::lock_guard lock(open.mutex);
  const auto found = open.all.find({&cuda, number});
  return found == open.all.end() ? nullptr : found->second.lock();
}

void Gpu::add_peer(const std::shared_ptr<const Gpu>& peer) const {
  const std::lock_guard lock(peers_mutex_);
  std::erase_if(peers_, [](const auto& one) { return one.expired(); });
  peers_.push_back(peer);
}

std::vector<std::shared_ptr<const Gpu>> Gpu::peers() const {
  std::vector<std::shared_ptr<const Gpu>> open;
  const std::lock_guard lock(peers_mutex_);
  for (const auto& peer : peers_)
    if (auto there = peer.lock()) open.push_back(std::move(there));
  return open;
}

Result<std::shared_ptr<Gpu>> Gpu::make(const Driver& cuda, std::uint32_t number) {
  const auto count = WSYNC_TRY(gpu_count(cuda));
  if (count == 0)
    return fail(
        ErrorCode::kRefused,
        fmt::format("this process sees no GPU ({}); check which GPUs nvidia-smi lists, or use host "
                    "devices (devices.kind: unified or separate; an engine's --device host)",
                    visible_gpus_text()));
  if (number >= count)
    return fail(ErrorCode::kRefused,
                fmt::format("GPU {} does not exist: this process sees {}, numbered from 0 ({})",
                            number, count, visible_gpus_text()));
  CUdevice device = 0;
  const auto what = fmt::format("GPU {}", number);
  WSYNC_TRY(check(cuda, cuda.cuDeviceGet(&device, static_cast<int>(number)), what));
  auto context = Context::retain(cuda, device);
  if (!context) return fail(context.error().with_context(what));
  std::shared_ptr<Gpu> gpu(new Gpu(std::move(*context), number));
  if (auto read = gpu->read_properties(); !read) return fail(read.error().with_context(what));
  if (auto shares = check_shares_memory(cuda, device); !shares)
    return fail(shares.error().with_context(gpu->name()));
  if (auto loaded = gpu->load_kernels(); !loaded)
    return fail(loaded.error().with_context(gpu->name()));
  return gpu;
}

Result<> Gpu::read_properties() {
  const CUdevice device = context_->device();
  model_ = WSYNC_TRY(model_name(cuda(), device));
  uuid_ = WSYNC_TRY(read_uuid(cuda(), device));
  const auto processors =
      WSYNC_TRY(attribute(cuda(), CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
  multiprocessors_ = static_cast<std::uint32_t>(processors);
  // An older driver does not know the attribute and therefore does not support it.
  registers_read_only_ =
      attribute(cuda(), CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, device)
          .value_or(0) != 0;
  return {};
}

Result<> Gpu::load_kernels() {
  module_ = WSYNC_TRY(cuda::load_kernels(context_));
  const ContextGuard guard(*context_);
  WSYNC_TRY(guard.entered());
  WSYNC_TRY(check(cuda(),
                  cuda().cuModuleGetFunction(&copy_pieces_, module_.get(), kCopyPiecesKernel),
                  fmt::format("the kernel {}", kCopyPiecesKernel)));
  WSYNC_TRY(check(cuda(),
                  cuda().cuModuleGetFunction(&convert_pieces_, module_.get(), kConvertPiecesKernel),
                  fmt::format("the kernel {}", kConvertPiecesKernel)));
  return check(cuda(),
               cuda().cuModuleGetFunction(&change_words_, module_.get(), kChangeWordsKernel),
               fmt::format("the kernel {}", kChangeWordsKernel));
}

Result<> Gpu::make_bounce_ring() const {
  const std::lock_guard lock(bounce_mutex_);
  if (bounce_ring_ == nullptr) bounce_ring_ = WSYNC_TRY(BounceRing::make(context_));
  return {};
}

BounceRing* Gpu::bounce_ring() const {
  const std::lock_guard lock(bounce_mutex_);
  return bounce_ring_.get();
}

Result<> Gpu::usable() const {
  if (!context_->abandoned()) return {};
  return fail(ErrorCode::kRefused,
              fmt::format("{} is no longer used by this process, because {}; restart the process",
                          name(), context_->why_abandoned()));
}

std::string Gpu::name() const { return fmt::format("GPU {} ({})", number_, model_); }

}  // namespace wsync::device::cuda

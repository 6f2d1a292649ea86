// UCX between processes of one host: each piece is a tagged message directly from the trainer's
// memory to an engine's, with several messages in flight. This is a separate program, which `wsync
// bench peers --install` compiles. It uses the messages of member.py and reads `job.txt`.
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <poll.h>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <ucp/api/ucp.h>
#include <unistd.h>
#include <utility>
#include <vector>
#define XXH_INLINE_ALL
#include <csignal>
#include <xxhash.h>

namespace {

constexpr std::size_t kPieceBytes = 64U << 20U;  // maximum bytes of a tensor per message
constexpr std::size_t kWindow = 32;              // concurrent messages per engine
// polls without progress before the core is yielded
constexpr unsigned kSpins = 100;

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error(what); }

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) refuse(std::string(what) + ": " + ucs_status_string(status));
}

struct Piece {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

struct Job {
  int rank = 0;
  int engines = 0;
  std::string directory;
  std::string socket;
  std::vector<std::string> models;
  std::size_t size = 0;
  std::vector<Piece> pieces;
};

Job read_job() {
  Job job;
  job.directory = std::getenv("WSYNC_PEER_DIRECTORY");
  job.rank = std::atoi(std::getenv("WSYNC_PEER_RANK"));
  std::ifstream file(job.directory + "/job.txt");
  for (std::string key; file >> key;) {
    if (key == "engines") {
      file >> job.engines;
    } else if (key == "size") {
      file >> job.size;
    } else if (key == "tensor") {
      Piece tensor;
      file >> tensor.offset >> tensor.bytes;
      for (std::size_t at = 0; at < tensor.bytes; at += kPieceBytes)
        job.pieces.push_back({tensor.offset + at, std::min(kPieceBytes, tensor.bytes - at)});
    } else {
      std::string value;
      std::getline(file >> std::ws, value);
      if (key == "socket") job.socket = value;
      if (key == "model") job.models.push_back(value);
    }
  }
  if (job.engines < 1 || job.socket.empty() || job.pieces.empty()) refuse("job.txt is incomplete");
  return job;
}

// A private mapping with every page touched, which exists until the process ends.
char* make_memory(std::size_t size) {
  void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) refuse("mmap: no memory");
  ::madvise(at, size, MADV_HUGEPAGE);
  std::memset(at, 0, size);
  return static_cast<char*>(at);
}

void load(char* memory, std::size_t size, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.read(memory, static_cast<std::streamsize>(size)))
    refuse(path + " is shorter than the model");
}

// Computes XXH3-128 of pieces in the given order, in a thread that runs in parallel to the caller.
class Digester {
 public:
  Digester() : state_(XXH3_createState()), thread_([this] { run(); }) { thread_.detach(); }
  void update(const char* at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    pieces_.emplace_back(at, bytes);
    changed_.notify_one();
  }
  std::string finish() {
    update(nullptr, 0);
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return !digest_.empty(); });
    return std::exchange(digest_, {});
  }

 private:
  void run() {
    XXH3_128bits_reset(state_);
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !pieces_.empty(); });
      const auto [at, bytes] = pieces_.front();
      pieces_.pop_front();
      lock.unlock();
      if (at != nullptr) {
        XXH3_128bits_update(state_, at, bytes);
        continue;
      }
      const XXH128_hash_t hash = XXH3_128bits_digest(state_);
      XXH3_128bits_reset(state_);
      char text[33];
      std::snprintf(text, sizeof text, "%016llx%016llx",
                    static_cast<unsigned long long>(hash.high64),
                    static_cast<unsigned long long>(hash.low64));
      lock.lock();
      digest_ = text;
      ended_.notify_one();
    }
  }
  XXH3_state_t* state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable ended_;
  std::deque<std::pair<const char*, std::size_t>> pieces_;
  std::string digest_;
  std::thread thread_;
};

class Driver {
 public:
  explicit Driver(const Job& job) : rank_(job.rank), fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (job.socket.size() >= sizeof address.sun_path) refuse("the socket's path is too long");
    job.socket.copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      refuse("cannot connect to " + job.socket);
  }
  void say(const std::string& fields) const {
    const std::string line = "{\"rank\": " + std::to_string(rank_) + ", " + fields + "}\n";
    if (::send(fd_, line.data(), line.size(), MSG_NOSIGNAL) < 0) ::_exit(1);
  }
  // Returns the index of the next model. Ends the process if the benchmark has ended. Calls
  // `progress` while it waits, because the other side may need this worker's progress to complete
  // its own operations.
  template <class Progress>
  std::size_t next(const Progress& progress) {
    pollfd said{fd_, POLLIN, 0};
    while (::poll(&said, 1, progress() ? 0 : 1) <= 0) {
    }
    std::string line;
    for (char c = 0; c != '\n'; line += c)
      if (::read(fd_, &c, 1) != 1) ::_exit(0);
    const std::size_t at = line.find(':');
    if (at == std::string::npos) refuse("expected a start command, received: " + line);
    return static_cast<std::size_t>(std::atoi(line.c_str() + at + 1));
  }

 private:
  int rank_;
  int fd_;
};

class Ucx {
 public:
  explicit Ucx(const Job& job) : job_(job) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG;
    check(ucp_init(&params, nullptr, &context_), "ucp_init");
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context_, &worker, &worker_), "ucp_worker_create");
    if (job.rank > 0)
      notify_address();
    else
      for (int engine = 1; engine <= job.engines; ++engine) endpoints_.push_back(meet(engine));
  }

  // Returns whether there was something to do.
  bool progress() { return ucp_worker_progress(worker_) > 0; }

  void send(const char* memory) {
    for (std::size_t i = 0; i < job_.pieces.size(); ++i)
      for (ucp_ep_h endpoint : endpoints_) {
        const Piece& piece = job_.pieces[i];
        const ucp_request_param_t params{};
        keep(ucp_tag_send_nbx(endpoint, memory + piece.offset, piece.bytes, i, &params), i);
        while (requests_.size() >= kWindow * endpoints_.size()) finish_first();
      }
    while (!requests_.empty()) finish_first();
  }

  void receive(char* memory, Digester& digester) {
    const auto take = [&] {
      const Piece& piece = job_.pieces[finish_first()];
      digester.update(memory + piece.offset, piece.bytes);
    };
    for (std::size_t i = 0; i < job_.pieces.size(); ++i) {
      const Piece& piece = job_.pieces[i];
      const ucp_request_param_t params{};
      keep(ucp_tag_recv_nbx(worker_, memory + piece.offset, piece.bytes, i, ~0ULL, &params), i);
      while (requests_.size() >= kWindow) take();
    }
    while (!requests_.empty()) take();
  }

 private:
  [[nodiscard]] std::string address_file(int engine) const {
    return job_.directory + "/ucx" + std::to_string(engine);
  }
  void notify_address() {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    check(ucp_worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address");
    const std::string path = address_file(job_.rank);
    std::ofstream(path + ".new", std::ios::binary)
        .write(reinterpret_cast<const char*>(address), static_cast<std::streamsize>(bytes));
    ucp_worker_release_address(worker_, address);
    std::filesystem::rename(path + ".new", path);
  }
  ucp_ep_h meet(int engine) {
    while (!std::filesystem::exists(address_file(engine))) ::usleep(2000);
    std::ifstream file(address_file(engine), std::ios::binary);
    const std::string address((std::istreambuf_iterator<char>(file)), {});
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    ucp_ep_h endpoint = nullptr;
    check(ucp_ep_create(worker_, &params, &endpoint), "ucp_ep_create");
    return endpoint;
  }
  void keep(ucs_status_ptr_t request, std::size_t piece) {
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "a message");
    requests_.emplace_back(request, piece);
  }
  // Waits for the oldest request and returns the number of its piece.
  std::size_t finish_first() {
    const auto [request, piece] = requests_.front();
    requests_.pop_front();
    if (request == nullptr) return piece;  // completed immediately
    unsigned idle = 0;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
      idle = ucp_worker_progress(worker_) > 0 ? 0 : idle + 1;
      if (idle > kSpins) ::sched_yield();
    }
    const ucs_status_t status = ucp_request_check_status(request);
    ucp_request_free(request);
    check(status, "a message");
    return piece;
  }

  const Job& job_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::vector<ucp_ep_h> endpoints_;
  std::deque<std::pair<ucs_status_ptr_t, std::size_t>> requests_;  // null: completed immediately
};

void serve(const Job& job, Driver& driver) {
  std::vector<char*> memories;
  for (std::size_t i = 0; i < (job.rank == 0 ? job.models.size() : 1); ++i) {
    memories.push_back(make_memory(job.size));
    if (job.rank == 0) load(memories.back(), job.size, job.models[i]);
  }
  Ucx ucx(job);
  Digester digester;
  driver.say("\"event\": \"ready\"");
  for (;;) {
    const std::size_t model = driver.next([&ucx] { return ucx.progress(); });
    if (job.rank == 0) {
      char* memory = memories.at(model);
      for (const Piece& piece : job.pieces) digester.update(memory + piece.offset, piece.bytes);
      ucx.send(memory);
    } else {
      ucx.receive(memories.front(), digester);
    }
    driver.say("\"event\": \"done\", \"digest\": \"" + digester.finish() + "\"");
  }
}

}  // namespace

int main() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    const Job job = read_job();
    Driver driver(job);
    try {
      serve(job, driver);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::string why = error.what();
      std::replace_if(
          why.begin(), why.end(), [](unsigned char c) { return c < 0x20 || c == '"' || c == '\\'; },
          ' ');
      driver.say("\"event\": \"failed\", \"why\": \"" + why + "\"");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(1);
}

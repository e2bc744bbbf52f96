// faulty_file_system DIRECTORY KIND OPERATION NUMBER COUNT SEED [MIB]
//
// Mounts a file system in memory, of MIB MiB (64), at DIRECTORY and serves it until SIGTERM. Requests NUMBER to NUMBER
// + COUNT - 1 of OPERATION get the fault KIND. With the kind "stall" they have no answer until the kernel interrupts
// them, and the kernel executes each request inside of the system call that submits it. Prints "ready" when it is
// mounted, and at the end the number of faults. Exits with 77 where FUSE is refused. Speaks the kernel's protocol
// itself: https://docs.kernel.org/filesystems/fuse.html
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<char>;

constexpr std::uint32_t write_max = 1 << 20;
constexpr std::uint64_t block = 4096;
// Longer than the deadline of the program under test. Bounded, because the kernel lets no process end whose request has
// no answer.
constexpr auto hang = std::chrono::seconds(5);

struct Fault {
  std::string kind, operation;
  std::uint64_t number = 0, count = 1;
};

volatile std::sig_atomic_t stopped = 0;

template <class T>
T parse(const char* body) {
  T value;
  std::memcpy(&value, body, sizeof value);
  return value;
}

template <class T>
Bytes bytes_of(const T& value) {
  const char* const first = reinterpret_cast<const char*>(&value);
  return Bytes(first, first + sizeof value);
}

const char* name_of(std::uint32_t opcode) {
  switch (opcode) {
    case FUSE_READ: return "read";
    case FUSE_WRITE: return "write";
    case FUSE_CREATE: return "create";
    case FUSE_FALLOCATE: return "fallocate";
    case FUSE_STATFS: return "statfs";
    case FUSE_UNLINK: return "unlink";
    case FUSE_SETATTR: return "setattr";
    case FUSE_GETATTR: return "getattr";
    case FUSE_FLUSH: return "flush";
    default: return "other";
  }
}

/// The answer to a request: a negative errno, or 0 and bytes.
struct Answer {
  int error = 0;
  Bytes bytes;
};

/// Files and directories, which are not listed. Node 1 is the root.
class Files {
 public:
  Files(std::uint64_t capacity, bool asynchronous) : capacity_(capacity), asynchronous_(asynchronous) {}

  Answer serve(std::uint32_t opcode, std::uint64_t node, const char* body) {
    switch (opcode) {
      case FUSE_INIT: return init(parse<fuse_init_in>(body));
      case FUSE_LOOKUP: return lookup(node, body);
      case FUSE_GETATTR: return attributes(node);
      case FUSE_SETATTR: return set_size(node, parse<fuse_setattr_in>(body));
      case FUSE_CREATE: return create(node, body + sizeof(fuse_create_in));
      case FUSE_MKDIR: return make_directory(node, body + sizeof(fuse_mkdir_in));
      case FUSE_OPEN:
      case FUSE_OPENDIR: return {0, bytes_of(fuse_open_out{.open_flags = FOPEN_DIRECT_IO})};
      case FUSE_READDIR:
      case FUSE_FLUSH:
      case FUSE_RELEASE:
      case FUSE_RELEASEDIR:
      case FUSE_FSYNC: return {};
      case FUSE_READ: return read(node, parse<fuse_read_in>(body));
      case FUSE_WRITE: return write(node, parse<fuse_write_in>(body), body + sizeof(fuse_write_in));
      case FUSE_FALLOCATE: return reserve(node, parse<fuse_fallocate_in>(body));
      case FUSE_UNLINK: return names_.erase({node, body}) > 0 ? Answer{} : Answer{-ENOENT, {}};
      case FUSE_STATFS: return statistics();
      default: return {-ENOSYS, {}};
    }
  }

 private:
  Answer init(const fuse_init_in& wanted) const {
    fuse_init_out out{};
    out.major = FUSE_KERNEL_VERSION;
    out.minor = std::min<std::uint32_t>(wanted.minor, 31);
    out.max_readahead = 0;
    out.flags = FUSE_MAX_PAGES | FUSE_BIG_WRITES | (asynchronous_ ? FUSE_ASYNC_DIO : 0u);
    out.max_background = 64;
    out.congestion_threshold = 64;
    out.max_write = write_max;
    out.max_pages = write_max / block;
    out.time_gran = 1;
    return {0, bytes_of(out)};
  }
  fuse_attr attribute(std::uint64_t node) const {
    fuse_attr attr{};
    attr.ino = node;
    attr.mode = files_.contains(node) ? S_IFREG | 0600 : S_IFDIR | 0700;
    attr.nlink = 1;
    attr.blksize = block;
    if (const auto file = files_.find(node); file != files_.end()) attr.size = file->second.size();
    attr.blocks = attr.size / 512;
    return attr;
  }
  Answer attributes(std::uint64_t node) const {
    return {0, bytes_of(fuse_attr_out{.attr = attribute(node)})};
  }
  fuse_entry_out entry(std::uint64_t node) const {
    fuse_entry_out out{};
    out.nodeid = node;
    out.attr = attribute(node);
    return out;
  }
  Answer lookup(std::uint64_t directory, const char* name) const {
    const auto found = names_.find({directory, name});
    return found == names_.end() ? Answer{-ENOENT, {}} : Answer{0, bytes_of(entry(found->second))};
  }
  Answer make_directory(std::uint64_t directory, const char* name) {
    const std::uint64_t node = next_++;
    names_[{directory, name}] = node;
    return {0, bytes_of(entry(node))};
  }
  Answer create(std::uint64_t directory, const char* name) {
    const std::uint64_t node = next_++;
    names_[{directory, name}] = node;
    files_[node] = {};
    Bytes both = bytes_of(entry(node));
    const Bytes open = bytes_of(fuse_open_out{.open_flags = FOPEN_DIRECT_IO});
    both.insert(both.end(), open.begin(), open.end());
    return {0, both};
  }
  Answer set_size(std::uint64_t node, const fuse_setattr_in& wanted) {
    if ((wanted.valid & FATTR_SIZE) != 0 && wanted.size > capacity_) return {-EFBIG, {}};
    if ((wanted.valid & FATTR_SIZE) != 0) files_[node].resize(wanted.size);
    return attributes(node);
  }
  Answer reserve(std::uint64_t node, const fuse_fallocate_in& wanted) {
    if (wanted.mode != 0) return {-EOPNOTSUPP, {}};
    if (wanted.offset + wanted.length > capacity_) return {-ENOSPC, {}};
    Bytes& file = files_[node];
    file.resize(std::max<std::size_t>(file.size(), wanted.offset + wanted.length));
    return {};
  }
  Answer read(std::uint64_t node, const fuse_read_in& wanted) {
    const Bytes& file = files_[node];
    const std::size_t begin = std::min<std::size_t>(wanted.offset, file.size());
    const std::size_t end = std::min<std::size_t>(begin + wanted.size, file.size());
    return {0, Bytes(file.begin() + static_cast<std::ptrdiff_t>(begin),
                     file.begin() + static_cast<std::ptrdiff_t>(end))};
  }
  Answer write(std::uint64_t node, const fuse_write_in& wanted, const char* data) {
    if (wanted.offset + wanted.size > capacity_) return {-ENOSPC, {}};
    Bytes& file = files_[node];
    file.resize(std::max<std::size_t>(file.size(), wanted.offset + wanted.size));
    std::copy_n(data, wanted.size, file.begin() + static_cast<std::ptrdiff_t>(wanted.offset));
    return {0, bytes_of(fuse_write_out{.size = wanted.size})};
  }
  Answer statistics() const {
    fuse_statfs_out out{};
    out.st.blocks = out.st.bfree = out.st.bavail = capacity_ / block;
    out.st.bsize = out.st.frsize = block;
    out.st.namelen = 255;
    return {0, bytes_of(out)};
  }

  const std::uint64_t capacity_;
  const bool asynchronous_;
  std::map<std::pair<std::uint64_t, std::string>, std::uint64_t> names_;  // of directory and name
  std::map<std::uint64_t, Bytes> files_;
  std::uint64_t next_ = FUSE_ROOT_ID + 1;
};

/// Answers requests, some of them wrongly or late.
class Server {
 public:
  Server(int device, Fault fault, std::uint64_t seed, std::uint64_t capacity)
      : device_(device), fault_(std::move(fault)), random_(seed), files_(capacity, fault_.kind != "stall") {}

  void run() {
    Bytes request(write_max + (1 << 16));
    while (stopped == 0) {
      send_late();
      pollfd waits{.fd = device_, .events = POLLIN, .revents = 0};
      if (::poll(&waits, 1, late_.empty() ? 200 : 5) <= 0) continue;
      const ssize_t length = ::read(device_, request.data(), request.size());
      if (length < 0 && errno == ENODEV) return;  // unmounted
      if (length > 0) serve(request.data());
    }
  }
  [[nodiscard]] std::uint64_t injected() const { return injected_; }

 private:
  struct Late {
    Clock::time_point due;
    std::uint64_t unique;
    Answer answer;
  };

  void serve(const char* request) {
    const auto header = parse<fuse_in_header>(request);
    const char* const body = request + sizeof header;
    if (header.opcode == FUSE_FORGET || header.opcode == FUSE_BATCH_FORGET) return;  // have no answer
    if (header.opcode == FUSE_INTERRUPT) return interrupt(parse<fuse_interrupt_in>(body).unique);
    const bool faulty = fault_.operation == name_of(header.opcode) && seen_++ - fault_.number < fault_.count;
    if (!faulty) return send(header.unique, files_.serve(header.opcode, header.nodeid, body));
    ++injected_;
    inject(header, body);
  }

  void inject(const fuse_in_header& header, const char* body) {
    const std::string& kind = fault_.kind;
    if (kind == "stall") return stalled_.push_back(header.unique);
    if (kind == "eio") return send(header.unique, {-EIO, {}});
    if (kind == "enospc") return send(header.unique, {-ENOSPC, {}});
    if (kind == "lose") {  // a write that is reported but not made
      return send(header.unique, {0, bytes_of(fuse_write_out{.size = parse<fuse_write_in>(body).size})});
    }
    Bytes changed(body, body + header.len - sizeof header);
    if (kind == "shorten") shorten(header.opcode, changed);
    Answer answer = files_.serve(header.opcode, header.nodeid, changed.data());
    if (kind == "flip" && !answer.bytes.empty()) {
      const std::uint64_t bit = random_() % (answer.bytes.size() * 8);
      answer.bytes[bit / 8] = static_cast<char>(answer.bytes[bit / 8] ^ (1 << bit % 8));
    }
    if (kind == "delay")
      return late_.push_back({Clock::now() + std::chrono::milliseconds(300), header.unique, answer});
    if (kind == "hang") return late_.push_back({Clock::now() + hang, header.unique, answer});
    send(header.unique, answer);
  }

  /// The kernel interrupts requests of a process that ends. Other late answers come in spite of that.
  void interrupt(std::uint64_t unique) {
    if (std::erase(stalled_, unique) > 0) send(unique, {-EINTR, {}});
  }

  /// Makes a read or write move a part, which may be no multiple of a block and nothing.
  void shorten(std::uint32_t opcode, Bytes& body) {
    if (opcode != FUSE_READ && opcode != FUSE_WRITE) return;
    static_assert(offsetof(fuse_read_in, size) == offsetof(fuse_write_in, size));
    auto size = parse<std::uint32_t>(body.data() + offsetof(fuse_read_in, size));
    size = static_cast<std::uint32_t>(random_() % size);
    std::memcpy(body.data() + offsetof(fuse_read_in, size), &size, sizeof size);
  }

  void send_late() {
    const auto now = Clock::now();
    for (auto late = late_.begin(); late != late_.end();) {
      if (late->due > now) {
        ++late;
        continue;
      }
      send(late->unique, late->answer);
      late = late_.erase(late);
    }
  }

  void send(std::uint64_t unique, const Answer& answer) const {
    Bytes message = bytes_of(
        fuse_out_header{.len = static_cast<std::uint32_t>(sizeof(fuse_out_header) + answer.bytes.size()),
                        .error = answer.error,
                        .unique = unique});
    message.insert(message.end(), answer.bytes.begin(), answer.bytes.end());
    (void)!::write(device_, message.data(), message.size());  // fails for a request that was interrupted
  }

  const int device_;
  const Fault fault_;
  std::mt19937_64 random_;
  Files files_;
  std::vector<Late> late_;
  std::vector<std::uint64_t> stalled_;  // requests without an answer until they are interrupted
  std::uint64_t seen_ = 0, injected_ = 0;
};

int skip(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  return 77;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7 && argc != 8) {
    std::fprintf(stderr, "usage: faulty_file_system DIRECTORY KIND OPERATION NUMBER COUNT SEED [MIB]\n");
    return 2;
  }
  struct sigaction action {};
  action.sa_handler = [](int) { stopped = 1; };
  ::sigaction(SIGTERM, &action, nullptr);
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return skip("/dev/fuse");
  const std::string options = "fd=" + std::to_string(device) +
                              ",rootmode=40700,user_id=" + std::to_string(::getuid()) +
                              ",group_id=" + std::to_string(::getgid());
  if (::mount("penstock-faults", argv[1], "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0)
    return skip("mount");
  std::printf("ready\n");
  std::fflush(stdout);

  Server server(
      device, {argv[2], argv[3], std::strtoull(argv[4], nullptr, 10), std::strtoull(argv[5], nullptr, 10)},
      std::strtoull(argv[6], nullptr, 10), (argc == 8 ? std::strtoull(argv[7], nullptr, 10) : 64) << 20);
  server.run();
  ::umount2(argv[1], MNT_DETACH);
  std::printf("injected %llu\n", static_cast<unsigned long long>(server.injected()));
  return 0;
}

#include "tiers/io/thread_pool_engine.hpp"

#include "kit/child_process.hpp"
#include "kit/scratch_directory.hpp"

#include "base/owned_fd.hpp"

#include <penstock/tiers/io/file_system.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <vector>

namespace penstock::tiers {
namespace {

/// A page on which a system call hangs that accesses it, until release().
class HangingPage {
 public:
  HangingPage() : fault_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC))) {
    page_ = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_api api{.api = UFFD_API};
    uffdio_register range{.range = {.start = reinterpret_cast<std::uintptr_t>(page_), .len = 4096},
                          .mode = UFFDIO_REGISTER_MODE_MISSING};
    works_ = fault_.is_open() && ::ioctl(fault_.get(), UFFDIO_API, &api) == 0 &&
             ::ioctl(fault_.get(), UFFDIO_REGISTER, &range) == 0;
  }
  ~HangingPage() {
    release();
    ::munmap(page_, 4096);
  }
  HangingPage(const HangingPage&) = delete;
  HangingPage& operator=(const HangingPage&) = delete;

  void release() { fault_ = OwnedFd(); }
  [[nodiscard]] bool works() const { return works_; }
  [[nodiscard]] HostSpan bytes() const { return HostSpan(static_cast<std::byte*>(page_), 4_KiB); }

 private:
  OwnedFd fault_;
  void* page_ = nullptr;
  bool works_ = false;
};

class ThreadPoolEngineTest : public testing::TestWithParam<std::uint32_t> {
 protected:
  IoRequest request(IoOperation operation, HostSpan buffer, std::uint64_t tag) {
    return {.operation = operation, .file = file_.handle(), .buffer = buffer, .tag = tag};
  }
  /// The tags of the next `count` completions, or of those that arrive within ten seconds.
  static std::vector<std::uint64_t> reap(IoEngine& engine, std::size_t count) {
    std::vector<std::uint64_t> tags;
    const TimePoint deadline = Clock::steady().now() + std::chrono::seconds(10);
    while (tags.size() < count && Clock::steady().now() < deadline) {
      std::array<IoCompletion, 1> completion;
      if (engine.reap(completion, deadline) == 1) tags.push_back(completion[0].tag);
    }
    return tags;
  }

  test::ScratchDirectory directory_;
  File file_ = real_file_system().create_scratch(directory_.path(), 64_KiB, DirectIo::off).value();
  std::array<std::byte, 4096> memory_{};
  HostSpan buffer_{memory_.data(), 4_KiB};
};

TEST_P(ThreadPoolEngineTest, ReadsBesideWritesAndFlushesThatHang) {
  HangingPage page;
  if (!page.works()) GTEST_SKIP() << "userfaultfd is not allowed here";
  auto engine = create_thread_pool_engine({.threads = GetParam(), .depth = 64}).value();
  std::vector<IoRequest> writes;
  for (std::uint64_t i = 0; i < 10; ++i) writes.push_back(request(IoOperation::write, page.bytes(), i));
  writes.push_back(request(IoOperation::flush, {}, 10));
  ASSERT_EQ(engine->submit(writes), 11u);
  const std::array reads = {request(IoOperation::read, buffer_, 20), request(IoOperation::read, buffer_, 21)};
  ASSERT_EQ(engine->submit(reads), 2u);

  EXPECT_EQ(reap(*engine, 2), (std::vector<std::uint64_t>{20, 21}));

  page.release();
  EXPECT_EQ(reap(*engine, 11).size(), 11u);
  EXPECT_TRUE(engine->close(forever));
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolEngineTest, testing::Values(1u, 4u));

TEST(ThreadPoolEngine, ReturnsTheRefusalOfItsThreads) {
  const int result = test::in_child([] {
    if (!test::refuse_system_call(SYS_clone3, EAGAIN)) return 77;
    const auto engine = create_thread_pool_engine({});
    return !engine && engine.error().code() == ErrorCode::no_space ? 0 : 1;
  });
  if (result == 77) GTEST_SKIP() << "no seccomp to be had";

  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace penstock::tiers

// Requests and transfers of more bytes than a 32-bit count can hold.
#include "io_engine_bench.hpp"
#include "kit/pattern.hpp"

#include <penstock/base/check.hpp>
#include "base/owned_fd.hpp"
#include "tiers/io/block_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <utility>

namespace penstock::tiers {
namespace {

using test::Pattern;

/// A long address range that maps the same small memory repeatedly; only a little more than the last MiB has its own
/// memory.
class LongBuffer {
 public:
  static constexpr ByteCount repeated = 16_MiB;

  explicit LongBuffer(ByteCount size) : size_(size), memory_(::memfd_create("long buffer", MFD_CLOEXEC)) {
    PENSTOCK_CHECK(memory_.is_open() &&
                   ::ftruncate(memory_.get(), static_cast<off_t>(repeated.value())) == 0);
    void* const range = ::mmap(nullptr, size.value(), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    PENSTOCK_CHECK(range != MAP_FAILED);
    begin_ = static_cast<std::byte*>(range);
    for (ByteCount at; at + repeated <= size - 1_MiB; at += repeated) {
      PENSTOCK_CHECK(::mmap(begin_ + at.value(), repeated.value(), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED, memory_.get(), 0) != MAP_FAILED);
    }
  }
  LongBuffer(const LongBuffer&) = delete;
  LongBuffer& operator=(const LongBuffer&) = delete;
  ~LongBuffer() { ::munmap(begin_, size_.value()); }

  [[nodiscard]] HostSpan span() const { return HostSpan(begin_, size_); }
  [[nodiscard]] HostSpan first() const { return span().subspan(0_B, repeated); }
  [[nodiscard]] HostSpan last() const { return span().subspan(size_ - 1_MiB, 1_MiB); }

 private:
  ByteCount size_;
  OwnedFd memory_;
  std::byte* begin_ = nullptr;
};

class IoEngineLength : public OverEngines {
 protected:
  BlockFile block_file(File file, ByteCount size) {
    return BlockFile::create(std::move(file), engine(), {.size = size, .request_max = 4_GiB}).value();
  }
  static Result<void> run(BlockFile& file, IoOperation operation, FileOffset offset, HostSpan bytes) {
    PENSTOCK_TRY(file.start(operation, offset, bytes, 1));
    while (file.busy()) file.poll(forever);
    return file.take_finished()->result;
  }
  /// A file that accepts all bytes and stores none.
  static File sink() {
    const int descriptor = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    PENSTOCK_CHECK(descriptor >= 0);
    return File(real_file_system(),
                {.handle = FileHandle(descriptor), .name = "/dev/null", .alignment = Alignment(4096)});
  }
};

TEST_P(IoEngineLength, CompletesARequestBeyondItsLimitShortWithThatMuchMoved) {
  const LongBuffer buffer(4_GiB + 1_MiB +
                          4_KiB);  // 1 MiB and a block, were only 32 bits of its length looked at
  Pattern{.tensor = 1}.fill(buffer.last());
  const auto request_max = static_cast<std::int64_t>(engine().limits().request_max.value());
  File file = bench_->scratch(buffer.span().size());
  const File null = sink();
  const IoRequest read{IoOperation::read, file.handle(), FileOffset(0), buffer.span(), 1};
  const IoRequest write{IoOperation::write, null.handle(), FileOffset(0), buffer.span(), 2};

  for (const IoRequest& request : {write, read}) {
    ASSERT_EQ(engine().submit({&request, 1}), 1u);
    EXPECT_EQ(bench_->reap_all(1)[0].result, request_max);
  }

  EXPECT_FALSE(Pattern{.tensor = 1}.first_difference(buffer.last()));
}

TEST_P(IoEngineLength, ReadsMoreThanTwoGibibytesInOneTransferToTheLastByte) {
  const LongBuffer buffer(2_GiB + 1_MiB + 4_KiB);
  const ByteCount size = buffer.span().size(), last(size - 1_MiB);
  BlockFile file = block_file(bench_->scratch(size), size);
  Pattern{.tensor = 2}.fill(buffer.last());
  ASSERT_TRUE(run(file, IoOperation::write, FileOffset(last.value()), buffer.last()));
  Pattern{.tensor = 3}.fill(buffer.first());
  Pattern{.tensor = 3}.fill(buffer.last());

  const auto read = run(file, IoOperation::read, FileOffset(0), buffer.span());

  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(file.counters().bytes_read, size);
  EXPECT_EQ(file.counters().requests, 1u + 3u);  // of at most 1 GiB
  EXPECT_TRUE(std::all_of(buffer.first().data(), buffer.first().data() + LongBuffer::repeated.value(),
                          [](std::byte byte) { return byte == std::byte{0}; }));  // never written
  EXPECT_FALSE(Pattern{.tensor = 2}.first_difference(buffer.last()));
}

TEST_P(IoEngineLength, WritesMoreThanTwoGibibytesInOneTransfer) {
  const LongBuffer buffer(2_GiB + 1_MiB + 4_KiB);
  BlockFile file = block_file(sink(), buffer.span().size());

  const auto wrote = run(file, IoOperation::write, FileOffset(0), buffer.span());

  ASSERT_TRUE(wrote) << wrote.error().message();
  EXPECT_EQ(file.counters().bytes_written, buffer.span().size());
  EXPECT_EQ(file.counters().requests, 3u);
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineLength, real_engines(), engine_name);

}  // namespace
}  // namespace penstock::tiers

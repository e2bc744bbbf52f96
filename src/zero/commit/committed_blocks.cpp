#include "zero/commit/committed_blocks.hpp"

#include "tiers/store/block_table.hpp"
#include "zero/layout/padded.hpp"

#include <sys/mman.h>
#include <algorithm>

namespace penstock::zero {

Result<PageBuffer> PageBuffer::create(ByteCount size) {
  // Direct I/O pins every page of a transfer; of 2 MiB there are few.
  constexpr Alignment huge_page(2 << 20);
  const Alignment alignment = size < ByteCount(huge_page.bytes()) ? extent_alignment : huge_page;
  PageBuffer made;
  made.size_ = round_up(size, alignment);
  made.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment.bytes(), made.size_.value())));
  if (made.memory_ != nullptr) {
    ::madvise(made.memory_.get(), made.size_.value(), MADV_HUGEPAGE);
    return made;
  }
  return Error(ErrorCode::no_space, "PageBuffer::create").reason("no host memory").wanted(made.size_);
}

Result<void> verify_blocks(const std::string& name, const CommittedTensor& tensor, ByteCount begin,
                           HostSpan bytes) {
  tiers::BlockTable table(tensor.key.seed(), tensor.size, tensor.block);
  for (ByteCount at; at < bytes.size(); at += tensor.block) {
    const std::uint64_t block = (begin + at) / tensor.block;
    table.set_record(block, {.hash = tensor.checksums[block], .generation = 1});
    if (table.verify(block, bytes.subspan(at, std::min(tensor.block, bytes.size() - at)))) continue;
    return Error(ErrorCode::corrupted, "read_blocks")
        .object(name)
        .at(tensor.offset + begin + at)
        .reason("the bytes are not those that were committed")
        .note("tensor  " + to_string(tensor.key) + ", block " + std::to_string(block))
        .advice("check the drive; another commit or a checkpoint may be whole");
  }
  return ok();
}

Result<HostSpan> read_blocks(const tiers::File& file, const std::string& name, const CommittedTensor& tensor,
                             ByteCount begin, ByteCount size, const PageBuffer& buffer) {
  const ByteCount padded = round_up(size, extent_alignment);
  PENSTOCK_TRY(file.read(tensor.offset + begin, buffer.bytes().subspan({}, padded)));
  const HostSpan bytes = buffer.bytes().subspan({}, size);
  PENSTOCK_TRY(verify_blocks(name, tensor, begin, bytes));
  return bytes;
}

}  // namespace penstock::zero

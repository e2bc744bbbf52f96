#include "swap/path/transfer_queue.hpp"

#include <algorithm>

namespace penstock::swap {

using tiers::IoOperation;

TransferQueue::Transfers& TransferQueue::queue_of(const Transfer& transfer) {
  if (transfer.urgent == nullptr || !transfer.urgent->load()) return others_;
  return transfer.operation == IoOperation::read ? reads_ : writes_;
}

void TransferQueue::push(const Transfer& transfer) {
  queue_of(transfer).push_back({transfer, pushed_++});
}

void TransferQueue::hasten(const std::atomic<bool>& urgent) {
  const auto found = std::find_if(others_.begin(), others_.end(),
                                  [&](const Transfer& transfer) { return transfer.urgent == &urgent; });
  if (found == others_.end()) return;
  const Queued transfer = *found;
  others_.erase(found);
  queue_of(transfer).push_back(transfer);
}

/// Of others_: a flush before which a write was pushed that is still queued.
bool TransferQueue::front_must_wait() const {
  const Queued& front = others_.front();
  return front.operation == IoOperation::flush &&
         std::any_of(writes_.begin(), writes_.end(),
                     [&](const Queued& write) { return write.number < front.number; });
}

TransferQueue::Transfers& TransferQueue::next() {
  const bool others_may = !others_.empty() && !front_must_wait();
  if (others_may && turns_of_urgent_ >= urgent_run) return others_;
  if (!writes_.empty() && (reads_.empty() || turns_of_reads_ >= urgent_run)) return writes_;
  return reads_.empty() ? others_ : reads_;
}

void TransferQueue::pass(bool whole) {
  Transfers& taken = next();
  if (whole) taken.pop_front();
  if (&taken == &writes_ || writes_.empty()) turns_of_reads_ = 0;
  if (&taken == &reads_ && !writes_.empty()) ++turns_of_reads_;
  turns_of_urgent_ = &taken != &others_ && !others_.empty() ? turns_of_urgent_ + 1 : 0;
}

void TransferQueue::remove(std::uint32_t slot) {
  for (Transfers* const transfers : {&reads_, &writes_, &others_})
    std::erase_if(*transfers, [slot](const Transfer& transfer) { return transfer.slot == slot; });
}

std::vector<std::uint32_t> TransferQueue::take_all() {
  std::vector<std::uint32_t> slots;
  for (Transfers* const transfers : {&reads_, &writes_, &others_}) {
    for (const Transfer& transfer : *transfers) slots.push_back(transfer.slot);
    transfers->clear();
  }
  return slots;
}

}  // namespace penstock::swap

#include "zero/comm/nccl/nccl_group.hpp"

#if PENSTOCK_HAS_NCCL
#include "zero/comm/nccl/nccl_transport.hpp"
#include "zero/comm/transport_communicator.hpp"

#include <thread>
#endif

#include <penstock/base/check.hpp>

#include <string>
#include <utility>

namespace penstock::zero {

namespace {

#if PENSTOCK_HAS_NCCL
Result<void> check(const JobControl& control, const NcclGroupOptions& options) {
  if (control.ranks() > Compute::mean_inputs_max) {
    return Error::invalid_argument("nccl_membership")
        .object("ranks")
        .wanted("from 1 to " + std::to_string(Compute::mean_inputs_max))
        .got(control.ranks());
  }
  for (const auto& [name, time] : {std::pair("join", options.join), std::pair("deadline", options.deadline),
                                   std::pair("leave", options.leave)}) {
    if (time > TimePoint::zero()) continue;
    return Error::invalid_argument("nccl_membership")
        .object(name)
        .wanted("a time above 0")
        .got(std::to_string(time.count()) + " ns");
  }
  if (options.clock != nullptr) return ok();
  return Error::invalid_argument("nccl_membership").object("clock").reason("it is null");
}

Result<void> connect(NcclTransport& transport) {
  PENSTOCK_TRY(transport.connect());
  while (true) {
    PENSTOCK_TRY_ASSIGN(const auto state, transport.poll());
    if (state == TransferState::complete) return ok();
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // NCCL wakes nobody
  }
}

Result<std::unique_ptr<Communicator>> join(const std::shared_ptr<JobControl>& control,
                                           const NcclGroupOptions& options, tiers::Device& device,
                                           Compute& compute, const CollectiveNeeds& needs) {
  PENSTOCK_TRY(check(*control, options));
  PENSTOCK_TRY_ASSIGN(const NcclLibrary* const nccl, NcclLibrary::instance());
  const auto ordinal = device.cuda_ordinal();
  PENSTOCK_CHECK(ordinal.has_value());
  auto transport = std::make_unique<NcclTransport>(*nccl, control, device, *ordinal, needs, options);
  if (auto connected = connect(*transport); !connected) {
    transport->abort(connected.error());
    return connected.error();
  }
  return std::make_unique<TransportCommunicator>(std::move(transport), compute);
}
#else
Result<std::unique_ptr<Communicator>> join(const std::shared_ptr<JobControl>&, const NcclGroupOptions&,
                                           tiers::Device&, Compute&, const CollectiveNeeds&) {
  return Error::unsupported("nccl_membership")
      .reason("this build has no NCCL")
      .advice("install the CUDA toolkit and NCCL's header (libnccl-dev), and build again");
}
#endif

}  // namespace

GroupMembership nccl_membership(std::shared_ptr<JobControl> control, const NcclGroupOptions& options) {
  return {.join = [control, options](tiers::Device& device, Compute& compute,
                                     const CollectiveNeeds& needs) -> Result<std::unique_ptr<Communicator>> {
            auto communicator = join(control, options, device, compute, needs);
            if (!communicator) control->fail(communicator.error());
            return communicator;
          },
          .abandon = [control](const Error& error) { control->fail(error); }};
}

}  // namespace penstock::zero

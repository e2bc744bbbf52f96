#include "unit/arguments/bad_arguments.hpp"

#include "kit/child_process.hpp"

#include <gtest/gtest.h>
#include <unistd.h>
#include <cstdio>
#include <exception>
#include <set>

namespace penstock::test {
namespace {

/// In a child, so that an abort, a crash or a hang fails one row and not the suite.
int call_in_child(const BadArgument& row) {
  return in_child([&row] {
    ::alarm(20);
    std::string complaint;
    try {
      complaint = row.call();
    } catch (const std::exception& exception) {
      complaint = std::string("an exception: ") + exception.what();
    }
    if (!complaint.empty()) std::fprintf(stderr, "%s\n", complaint.c_str());
    return complaint.empty() ? 0 : 1;
  });
}

TEST(Arguments, EveryBadArgumentOfAPublicFunctionIsRefusedOrHarmless) {
  BadArguments bad;
  for (const auto add :
       {add_base_rows, add_compute_rows, add_adam_rows, add_optimizer_rows, add_device_adam_rows,
        add_device_rows, add_file_rows, add_transfer_rows, add_simulation_rows, add_runtime_rows,
        add_trace_rows, add_report_rows, add_group_rows, add_configuration_rows, add_launch_rows,
        add_process_group_rows, add_rank_rows, add_exchange_rows}) {
    add(bad);
  }
  std::set<std::string> functions;
  for (const BadArgument& row : bad.rows()) {
    functions.insert(row.function);
    EXPECT_EQ(call_in_child(row), 0) << row.function << ": " << row.argument << " = " << row.value;
  }

  std::printf("%zu public functions, %zu bad arguments\n", functions.size(), bad.rows().size());
  EXPECT_GE(functions.size(), 170u);
  EXPECT_GE(bad.rows().size(), 1355u);
}

}  // namespace
}  // namespace penstock::test

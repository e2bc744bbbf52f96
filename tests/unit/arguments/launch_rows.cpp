#include "unit/arguments/bad_arguments.hpp"

#include <penstock/zero/launch/launch.hpp>

#include <map>
#include <optional>
#include <string>

namespace penstock::test {

using namespace zero;

void add_launch_rows(BadArguments& bad) {
  const std::string names[] = {"",
                               ":",
                               "host",
                               "host:",
                               "host:0",
                               "host:65536",
                               ":1",
                               "[::1]",
                               "[::1:",
                               "a:b:1",
                               "h:-1",
                               "h:1e3",
                               "h i:1",
                               "[]:1",
                               "[",
                               "host:1\n",
                               std::string("h\0:x", 4),
                               std::string(1 << 20, ':')};
  for (const std::string& name : names) {
    bad("Endpoint::parse", "text", name.substr(0, 20), [name] { return fails(Endpoint::parse(name)); });
  }
  const std::string variables[] = {"RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                   "MASTER_ADDR", "MASTER_PORT"};
  const std::string values[] = {
      "", "-1", "x", "4294967296", std::string("1\0", 2), std::string(1 << 20, '1')};
  for (const std::string& variable : variables) {
    for (const std::string& value : values) {
      if (variable == "MASTER_ADDR" && !value.empty()) continue;
      bad("find_launch", "environment", variable + "=" + value.substr(0, 20), [=] {
        std::map<std::string, std::string> set = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
        set[variable] = value;
        const auto found = find_launch({}, [&set](const char* name) {
          const auto at = set.find(name);
          return at == set.end() ? std::nullopt : std::optional(at->second);
        });
        return refused(found, variable);
      });
    }
  }
  bad("find_launch", "environment", "empty", [] { return refused(find_launch({}, {}), "environment"); });
  const LaunchOptions options[] = {{.rank = 0},
                                   {.ranks = 1},
                                   {.rank = 1, .ranks = 1},
                                   {.rank = 0, .ranks = 0},
                                   {.rank = 0, .ranks = 2, .local_rank = 2, .local_ranks = 2},
                                   {.rank = 0, .ranks = 2, .local_ranks = 0},
                                   {.rank = 0, .ranks = 2, .local_ranks = 3}};
  for (std::size_t i = 0; i < std::size(options); ++i) {
    bad("find_launch", "options", "wrong, number " + std::to_string(i),
        [given = options[i]] { return refused(find_launch(given), "--"); });
  }
}

}  // namespace penstock::test

#include <penstock/zero/launch/launch.hpp>

#include "zero/launch/slurm_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

namespace penstock::zero {

namespace {

constexpr const char* operation = "find_launch";
/// The control channel listens on the port after it.
constexpr std::uint16_t master_port_max = 65534;

/// The variables of one launcher. Null: it sets none for this.
struct Launcher {
  std::string_view name;
  const char *rank, *ranks, *local_rank, *local_ranks, *job;
};
constexpr Launcher slurm = {"Slurm",         "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                            "SLURM_LOCALID", nullptr,        nullptr};
/// In the order of precedence.
constexpr std::array launchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    Launcher{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
    slurm,
    Launcher{"PMIx", "PMIX_RANK", "WORLD_SIZE", nullptr, nullptr, "PMIX_NAMESPACE"},
};

Error refused(std::string name) {
  return Error::invalid_argument(operation).object(std::move(name));
}

/// The start of a text that may have any length.
std::string quoted_start(std::string_view text) {
  constexpr std::size_t length_max = 60;
  const bool cut = text.size() > length_max;
  return '"' + std::string(text.substr(0, length_max)) + (cut ? "\"…" : "\"");
}

Result<std::uint32_t> number(const std::string& name, const std::string& text, std::uint32_t smallest = 0,
                             std::uint32_t largest = ~0u) {
  std::uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec == std::errc() && parsed.ptr == end && value >= smallest && value <= largest) return value;
  return refused(name)
      .wanted("a number from " + std::to_string(smallest) + " to " + std::to_string(largest))
      .got(quoted_start(text))
      .advice("set it as the launcher does");
}

/// Reads variables, and notes each one that it has read.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  [[nodiscard]] std::optional<std::string> text(const char* name) {
    if (name == nullptr) return std::nullopt;
    auto value = environment_(name);
    if (value) read_.append(read_.empty() ? "" : " ").append(name).append("=").append(*value);
    return value;
  }
  Result<std::optional<std::uint32_t>> count(const char* name) {
    const auto value = text(name);
    if (!value) return std::optional<std::uint32_t>();
    PENSTOCK_TRY_ASSIGN(const std::uint32_t parsed, number(name, *value));
    return std::optional(parsed);
  }
  [[nodiscard]] bool is_set(const char* name) const { return environment_(name).has_value(); }
  [[nodiscard]] const std::string& read() const { return read_; }

 private:
  const Environment& environment_;
  std::string read_;
};

/// Steps have small numbers; batch scripts and the other processes that Slurm numbers have the largest ones.
bool is_slurm_step(const Environment& environment) {
  const auto step = environment("SLURM_STEP_ID");
  if (!step) return false;
  std::uint32_t value = 0;
  const auto parsed = std::from_chars(step->data(), step->data() + step->size(), value);
  constexpr std::uint32_t first_of_slurm = 0xfffffff0;
  return parsed.ec == std::errc() && parsed.ptr == step->data() + step->size() && value < first_of_slurm;
}

/// Slurm's plugin pmi2 sets some of MPICH's variables for its own tasks. MPICH's launcher sets the local rank, too.
bool is_slurms_pmi(const Launcher& launcher, const Environment& environment) {
  return launcher.name == "MPICH" && is_slurm_step(environment) && !environment(launcher.local_rank) &&
         environment(launcher.rank) == environment(slurm.rank) &&
         environment(launcher.ranks) == environment(slurm.ranks);
}

const Launcher* find_launcher(const Environment& environment) {
  const auto found = std::find_if(launchers.begin(), launchers.end(), [&](const Launcher& launcher) {
    return environment(launcher.rank).has_value() && !is_slurms_pmi(launcher, environment) &&
           (launcher.name != slurm.name || is_slurm_step(environment));
  });
  return found == launchers.end() ? nullptr : &*found;
}

/// A number of ranks without a rank would otherwise start as many runs of one rank.
Result<void> check_no_half(const Environment& environment) {
  for (const Launcher& launcher : launchers) {
    if (launcher.name == slurm.name || !environment(launcher.ranks)) continue;
    return refused(launcher.rank)
        .reason(std::string(launcher.ranks) + " is set, and " + launcher.rank + " is not")
        .advice(std::string("start the program with its launcher, or unset ") + launcher.ranks);
  }
  return ok();
}

Result<void> read_slurm(Launch& launch, Reader& reader) {
  if (const auto tasks = reader.text("SLURM_STEP_TASKS_PER_NODE")) {
    PENSTOCK_TRY_ASSIGN(const auto node, reader.count("SLURM_NODEID"));
    PENSTOCK_TRY_ASSIGN(launch.local_ranks, slurm_tasks_of_node(*tasks, node.value_or(0)));
  }
  if (const auto nodes = reader.text("SLURM_STEP_NODELIST")) {
    PENSTOCK_TRY_ASSIGN(std::string first, slurm_first_node(*nodes));
    launch.master = Endpoint{std::move(first), 0};
  }
  launch.job = reader.text("SLURM_JOB_ID").value_or("") + "." + reader.text("SLURM_STEP_ID").value_or("");
  return ok();
}

Result<Launch> read_launcher(const Launcher& launcher, Reader& reader) {
  Launch launch;
  PENSTOCK_TRY_ASSIGN(const auto rank, reader.count(launcher.rank));
  PENSTOCK_TRY_ASSIGN(const auto ranks, reader.count(launcher.ranks));
  if (!ranks) {
    return refused(launcher.ranks)
        .reason(std::string(launcher.rank) + " is set, and " + launcher.ranks + " is not")
        .advice(std::string("set ") + launcher.ranks + " to the number of all ranks");
  }
  launch.rank = *rank;
  launch.ranks = *ranks;
  PENSTOCK_TRY_ASSIGN(launch.local_rank, reader.count(launcher.local_rank));
  PENSTOCK_TRY_ASSIGN(launch.local_ranks, reader.count(launcher.local_ranks));
  launch.job = reader.text(launcher.job).value_or("");
  if (launcher.name == slurm.name) PENSTOCK_TRY(read_slurm(launch, reader));
  return launch;
}

/// What the places are called, for messages.
struct Names {
  const char *rank, *ranks, *local_rank, *local_ranks;
};

/// Launchers number the ranks of a machine in the order of their ranks in the job: so at least LOCAL_RANK ranks of the
/// job are before this one, and the others of its machine after it.
Result<void> check_local_rank(const Launch& launch, const Names& names) {
  const std::uint32_t local_rank = *launch.local_rank;
  if (local_rank >= launch.ranks) {
    return refused(names.local_rank)
        .wanted("below " + std::to_string(launch.ranks) + ", " + names.ranks)
        .got(local_rank)
        .advice("count the ranks of each machine from 0; CUDA_VISIBLE_DEVICES chooses a GPU");
  }
  const std::uint32_t last = launch.ranks - (launch.local_ranks.value_or(local_rank + 1) - local_rank);
  if (launch.rank >= local_rank && launch.rank <= last) return ok();
  const auto part = [](std::uint32_t number, const char* counts, std::optional<std::uint32_t> count) {
    return std::to_string(number) +
           (count ? std::string(" of ") + counts + "=" + std::to_string(*count) : "");
  };
  return refused(std::string(names.rank) + " and " + names.local_rank)
      .reason(
          "they contradict each other: ranks of a machine are numbered in the order of their ranks in the "
          "job")
      .wanted(std::string("with this ") + names.local_rank + ", " + names.rank + " from " +
              std::to_string(local_rank) + " to " + std::to_string(last))
      .got(std::string(names.rank) + "=" + part(launch.rank, names.ranks, launch.ranks) + ", " +
           names.local_rank + "=" + part(local_rank, names.local_ranks, launch.local_ranks))
      .advice(std::string("set ") + names.local_rank +
              " to the number of ranks on this machine that come before this one");
}

Result<void> check_place(const Launch& launch, const Names& names) {
  const auto below = [](const char* name, std::uint32_t value, std::uint32_t count,
                        const char* counted) -> Result<void> {
    if (value < count) return ok();
    return refused(name)
        .wanted("below " + std::to_string(count) + ", " + counted)
        .got(value)
        .advice("ranks are counted from 0; start every rank with the same number of ranks");
  };
  const auto at_least_one = [](const char* name, std::uint32_t value) -> Result<void> {
    if (value > 0) return ok();
    return refused(name).wanted("1 or more").got(value).advice("set it to the number of ranks");
  };
  PENSTOCK_TRY(at_least_one(names.ranks, launch.ranks));
  PENSTOCK_TRY(below(names.rank, launch.rank, launch.ranks, names.ranks));
  if (launch.local_ranks) {
    PENSTOCK_TRY(at_least_one(names.local_ranks, *launch.local_ranks));
    if (*launch.local_ranks > launch.ranks) {
      return refused(names.local_ranks)
          .wanted("at most " + std::to_string(launch.ranks) + ", " + names.ranks)
          .got(*launch.local_ranks)
          .advice("set it to the number of ranks on this machine");
    }
    if (launch.local_rank)
      PENSTOCK_TRY(below(names.local_rank, *launch.local_rank, *launch.local_ranks, names.local_ranks));
  }
  return launch.local_rank ? check_local_rank(launch, names) : ok();
}

Result<Launch> of_options(const LaunchOptions& options) {
  if (!options.rank || !options.ranks) {
    return refused(options.rank ? "--world" : "--rank")
        .reason("one of --rank and --world is missing")
        .advice("give both to every rank: --rank R --world N");
  }
  std::string source =
      "options: rank " + std::to_string(*options.rank) + " of " + std::to_string(*options.ranks);
  return Launch{.rank = *options.rank,
                .ranks = *options.ranks,
                .local_rank = options.local_rank,
                .local_ranks = options.local_ranks,
                .master = std::nullopt,
                .job = {},
                .source = std::move(source)};
}

/// FNV-1a, which is the same on every machine. http://www.isthe.com/chongo/tech/comp/fnv/
std::uint16_t port_of_job(const std::string& job) {
  if (job.empty()) return 29500;
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  constexpr std::uint16_t first = 20000, count = 9998;
  return static_cast<std::uint16_t>(first + hash % count);
}

/// Adds what `launch` does not say about the master.
Result<void> find_master(Launch& launch, Reader& reader) {
  const auto host = reader.text("MASTER_ADDR");
  if (host && host->empty())
    return refused("MASTER_ADDR").reason("it is empty").advice("set it to the host of rank 0");
  if (host) launch.master = Endpoint{*host, 0};
  if (!launch.master && launch.local_ranks == launch.ranks) launch.master = Endpoint{"127.0.0.1", 0};
  const auto port = reader.text("MASTER_PORT");
  std::uint32_t chosen = port_of_job(launch.job);
  if (port) {
    PENSTOCK_TRY_ASSIGN(chosen, number("MASTER_PORT", *port, 1, master_port_max));
  }
  if (launch.master) launch.master->port = static_cast<std::uint16_t>(chosen);
  return ok();
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Result<Launch> find_launch(const LaunchOptions& options, const Environment& environment) {
  if (!environment) {
    return refused("environment")
        .reason("the function is empty")
        .advice("leave it out, for process_environment()");
  }
  const bool given = options.rank || options.ranks || options.local_rank || options.local_ranks;
  const Launcher* const launcher = given ? nullptr : find_launcher(environment);
  Reader reader(environment);
  Launch launch;
  if (given) {
    PENSTOCK_TRY_ASSIGN(launch, of_options(options));
    PENSTOCK_TRY(check_place(launch, {"--rank", "--world", "--local-rank", "--local-world"}));
  } else if (launcher != nullptr) {
    PENSTOCK_TRY_ASSIGN(launch, read_launcher(*launcher, reader));
    PENSTOCK_TRY(check_place(
        launch, {launcher->rank, launcher->ranks, launcher->local_rank,
                 launcher->local_ranks == nullptr ? "SLURM_STEP_TASKS_PER_NODE" : launcher->local_ranks}));
  } else {
    PENSTOCK_TRY(check_no_half(environment));
    launch.local_rank = 0;
    launch.local_ranks = 1;
    launch.source = "no launcher: one rank";
    return launch;
  }
  if (auto job = reader.text("PENSTOCK_JOB")) launch.job = *std::move(job);
  PENSTOCK_TRY(find_master(launch, reader));
  if (options.master) launch.master = options.master;
  if (launcher != nullptr) launch.source = std::string(launcher->name) + ": " + reader.read();
  return launch;
}

Result<Endpoint> Endpoint::parse(std::string_view text) {
  const auto bad = [&text](const char* wanted) {
    return Error::invalid_argument("Endpoint::parse").wanted(wanted).got(quoted_start(text));
  };
  constexpr const char* form = "host:port, or [address]:port for IPv6";
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad(form);
  std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of("[]:") != std::string_view::npos) {
    return bad(form);
  }
  if (host.empty() || host.find_first_of(" \t\n") != std::string_view::npos) return bad(form);
  std::uint16_t value = 0;
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != port.data() + port.size() || value == 0)
    return bad("a port from 1 to 65535");
  return Endpoint{std::string(host), value};
}

std::string to_string(const Endpoint& endpoint) {
  const bool is_ipv6 = endpoint.host.find(':') != std::string::npos;
  std::string text = is_ipv6 ? '[' + endpoint.host + ']' : endpoint.host;
  return text.append(":").append(std::to_string(endpoint.port));
}

}  // namespace penstock::zero

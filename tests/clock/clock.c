/*
 * A clock that a test sets while a server runs, for LD_PRELOAD in front of the whole server.
 *
 * $CLOCK_FILE holds how many microseconds the wall clock is off, as a decimal number; who replaces it by a rename moves the
 * clock of every process at once. The monotonic clock is left alone: naps and deadlines are as long as ever.
 *
 * PostgreSQL reads the clock in signal handlers (handle_sig_alarm in src/backend/utils/misc/timeout.c), which may have
 * interrupted malloc(). So nothing is called here but what signal-safety(7) lists. libfaketime calls fopen() there, and
 * thereby corrupts the heap of a server now and then.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *file;

/* A copy: PostgreSQL writes its process title over the environment it was started with. */
__attribute__((constructor)) static void
remember_file(void)
{
	const char *name = getenv("CLOCK_FILE");

	file = name ? strdup(name) : NULL;
}

static long long
microseconds_off(void)
{
	static long long last;
	char		digits[32];
	int			saved_errno = errno;
	int			descriptor = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t		length = -1;

	if (descriptor >= 0)
	{
		length = read(descriptor, digits, sizeof(digits));
		close(descriptor);
	}
	/* Where it cannot be read, as when files run out, the clock goes on as it did. */
	if (length > 0)
	{
		ssize_t		i = digits[0] == '-';
		long long	value = 0;

		for (; i < length && digits[i] >= '0' && digits[i] <= '9'; i++)
			value = value * 10 + (digits[i] - '0');
		last = digits[0] == '-' ? -value : value;
	}
	errno = saved_errno;
	return last;
}

int
clock_gettime(clockid_t id, struct timespec *now)
{
	int			result = (int) syscall(SYS_clock_gettime, id, now);

	if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
	{
		long long	off = microseconds_off();
		long long	nanoseconds = now->tv_nsec + off % 1000000 * 1000;

		now->tv_sec += off / 1000000 + (nanoseconds >= 1000000000) - (nanoseconds < 0);
		now->tv_nsec = (nanoseconds + 1000000000) % 1000000000;
	}
	return result;
}

int
gettimeofday(struct timeval *now, void *zone)
{
	struct timespec precise;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &precise);
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *seconds)
{
	struct timespec precise;

	clock_gettime(CLOCK_REALTIME, &precise);
	if (seconds)
		*seconds = precise.tv_sec;
	return precise.tv_sec;
}

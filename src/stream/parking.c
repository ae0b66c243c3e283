/* SPDX-License-Identifier: Apache-2.0 */
/* One counter for the process: the driver's limits know no communicator. */
#include "stream/parking.h"

#include "base/clock.h"
#include "base/error.h"

#include <pthread.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static int count; /* under lock */

static HOCCL_Result no_room(uint64_t timeout)
{
    return hoccl_fail(HOCCL_ERR_USAGE,
                      "%d streams of this process (counted once for each communicator) wait in HOCCL operations and none was "
                      "released within %llu s (HOCCL_TIMEOUT): the driver hangs beyond %d; wait for some before more are used",
                      HOCCL_PARKED_MAX, (unsigned long long)(timeout / HOCCL_S), HOCCL_PARKED_MAX);
}

HOCCL_Result hoccl_parking_enter(int n, uint64_t timeout, HOCCL_Result (*give_up)(void *arg), void *arg, int *parked)
{
    struct timespec until = hoccl_deadline(timeout);
    HOCCL_Result r = HOCCL_SUCCESS;
    int over = 0;
    if (n > HOCCL_PARKED_MAX)
        return hoccl_fail(HOCCL_ERR_USAGE, "a group over %d streams: at most %d streams of a process can wait at once", n,
                          HOCCL_PARKED_MAX);
    pthread_mutex_lock(&lock);
    while (count + n > HOCCL_PARKED_MAX && !over && !(r = give_up ? give_up(arg) : HOCCL_SUCCESS))
        over = pthread_cond_timedwait(&released, &lock, &until);
    if (!over && !r)
        *parked = count += n;
    pthread_mutex_unlock(&lock);
    return r || !over ? r : no_room(timeout);
}

void hoccl_parking_stir(void)
{
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&lock);
}

void hoccl_parking_leave(int n)
{
    pthread_mutex_lock(&lock);
    count -= n;
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&lock);
}

bool hoccl_parking_count(int n)
{
    if (pthread_mutex_trylock(&lock))
        return false;
    count += n;
    pthread_mutex_unlock(&lock);
    return true;
}

bool hoccl_parking_quiet(void (*f)(void *arg), void *arg)
{
    pthread_mutex_lock(&lock);
    bool quiet = count == 0;
    if (quiet)
        f(arg);
    pthread_mutex_unlock(&lock);
    return quiet;
}
